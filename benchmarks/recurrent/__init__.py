"""Training steps of recurrent networks: the loss is the mean of the squared hidden states, over all steps.

Cells and layouts, for inputs x `[batch, input]` and hidden states h `[batch, hidden]`, all float32:

    LSTM    i, f, g, o = x wx + h wh + b         c' = sigmoid(f) c + sigmoid(i) tanh(g)    h' = sigmoid(o) tanh(c')
    GRU     r, z = sigmoid(x wx + h wh + b)      n = tanh(x wxn + bx + r (h whn + bn))     h' = (1 - z) n + z h

These are the equations of `torch.nn.LSTM` and `torch.nn.GRU`. In the form `separate` a program computes `x @ wx` and
`h @ wh`; in the form `concat` it computes `concat([x, h]) @ w` wherever the equations allow.
"""
