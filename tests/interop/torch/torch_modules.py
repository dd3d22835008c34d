"""Modules as they are written for PyTorch: nothing in them knows of this library."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    """A bidirectional LSTM over sentences of different length, packed."""

    def __init__(self, words: int = 20, tags: int = 4, hidden: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 6)
        self.lstm = nn.LSTM(6, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, words: Any, lengths: Any, tags: Any) -> Any:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return F.cross_entropy(self.out(states).flatten(0, 1), tags.flatten(), ignore_index=-100)


class Translator(nn.Module):
    """A sequence-to-sequence model with attention: trained on targets, or decoding greedily until the end token."""

    def __init__(self, words: int = 9, hidden: int = 6, longest: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, hidden)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.out = nn.Linear(hidden, words)
        self.end, self.longest = 0, longest

    def step(self, word: Any, state: Any, memory: Any) -> Any:
        weights = torch.softmax(torch.einsum("bh,bth->bt", state, memory), dim=-1)
        seen = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        state = self.cell(torch.cat([self.embed(word), seen], dim=-1), state)
        return self.out(state), state

    def forward(self, source: Any, target: Any) -> Any:
        memory, last = self.encoder(self.embed(source))
        state, loss = last[0], 0.0
        for t in range(target.shape[1] - 1):
            logits, state = self.step(target[:, t], state, memory)
            loss = loss + F.cross_entropy(logits, target[:, t + 1])
        return loss / (target.shape[1] - 1)


class Decoder(nn.Module):
    """The words that a `Translator` says for one sentence, and how many there are."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Any) -> Any:
        model = self.model
        memory, last = model.encoder(model.embed(source))
        state = last[0]
        said = torch.zeros(model.longest, dtype=torch.int64)
        word = torch.ones(1, dtype=torch.int64)
        count = 0
        while count < model.longest and (count == 0 or word[0] != model.end):
            logits, state = model.step(word, state, memory)
            word = logits.argmax(-1)
            said = torch.where(torch.arange(model.longest) == count, word, said)
            count += 1
        return said, count


class NeuralOde(nn.Module):
    """The state at time 1 of dy/dt = f(y), by Heun's method with steps that keep an error estimate below a bound."""

    def __init__(self, size: int = 3, tolerance: float = 1e-3) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, size))
        self.tolerance = tolerance

    def forward(self, y: Any) -> Any:
        t, h = 0.0, 0.2
        while t < 1.0:
            h = min(h, 1.0 - t)
            k1 = self.f(y)
            k2 = self.f(y + h * k1)
            error = (0.5 * h * (k2 - k1)).abs().max().item()
            if error <= self.tolerance:
                t, y = t + h, y + 0.5 * h * (k1 + k2)
            h = h * min(2.0, max(0.2, 0.9 * (self.tolerance / (error + 1e-12)) ** 0.5))
        return y


class Equilibrium(nn.Module):
    """A layer whose result is the fixed point of z = tanh(W z + U x)."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.w = nn.Linear(size, size, bias=False)
        self.u = nn.Linear(size, size)
        with torch.no_grad():
            self.w.weight.mul_(0.4)

    def forward(self, x: Any) -> Any:
        z = torch.zeros_like(x)
        fixed = self.u(x)
        steps = 0
        while True:
            new = torch.tanh(self.w(z) + fixed)
            change = torch.linalg.vector_norm(new - z)
            z = new
            steps += 1
            if change < 1e-9 or steps >= 200:
                break
        return z


class AdaptiveComputation(nn.Module):
    """A recurrent network that thinks about each input until its halting probabilities sum to almost 1 (Graves 2016)."""

    def __init__(self, inputs: int = 3, hidden: int = 4, most: int = 8) -> None:
        super().__init__()
        self.cell = nn.RNNCell(inputs + 1, hidden)
        self.halt = nn.Linear(hidden, 1)
        self.most = most

    def forward(self, xs: Any) -> Any:
        state = torch.zeros(1, self.cell.hidden_size, dtype=xs.dtype)
        ponder = torch.zeros((), dtype=xs.dtype)
        for x in xs:
            first = torch.ones(1, 1, dtype=xs.dtype)
            total = torch.zeros((), dtype=xs.dtype)
            mean = torch.zeros_like(state)
            steps = 0
            while total < 0.99 and steps < self.most:
                state = self.cell(torch.cat([x[None], first], dim=1), state)
                first = torch.zeros_like(first)
                p = torch.sigmoid(self.halt(state)).squeeze()
                p = torch.where(total + p > 0.99, 1 - total, p)
                mean = mean + p * state
                total = total + p
                steps += 1
            state = mean
            ponder = ponder + steps + (1 - total)
        return state.sum() + 0.01 * ponder


class BeamSearch(nn.Module):
    """The best of `width` continuations at each step, until all have ended: their words and their scores."""

    def __init__(self, words: int = 7, hidden: int = 5, width: int = 3, longest: int = 9) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, hidden)
        self.cell = nn.LSTMCell(hidden, hidden)
        self.out = nn.Linear(hidden, words)
        self.words, self.width, self.longest = words, width, longest

    def forward(self, state: Any) -> Any:
        h = state.expand(self.width, -1)
        c = torch.zeros_like(h)
        said = torch.zeros(self.width, self.longest, dtype=torch.int64)
        word = torch.ones(self.width, dtype=torch.int64)
        scores = torch.full((self.width,), -1e9, dtype=state.dtype)
        scores[0] = 0.0
        ended = torch.zeros(self.width, dtype=torch.bool)
        t = 0
        while t < self.longest and not ended.all():
            h, c = self.cell(self.embed(word), (h, c))
            log_p = F.log_softmax(self.out(h), dim=-1)
            stay = torch.full_like(log_p, -1e9)
            stay[:, 0] = 0.0
            log_p = torch.where(ended[:, None], stay, log_p)
            scores, places = (scores[:, None] + log_p).flatten().topk(self.width)
            parent, word = places // self.words, places % self.words
            said, h, c, ended = said[parent], h[parent], c[parent], ended[parent]
            said = torch.where(torch.arange(self.longest) == t, word[:, None], said)
            ended = ended | (word == 0)
            t += 1
        return said, scores
