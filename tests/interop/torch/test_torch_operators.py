"""The table of ATen's operators: values, gradients and second derivatives against PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

import ctrlgrad as cg  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*", "ignore::FutureWarning:torch.*")

RNG = np.random.default_rng(0)
# x and y of any sign, p positive, m square and well conditioned, i whole numbers below 3, b booleans, image and signal.
VALUES: dict[str, np.ndarray] = {
    "x": RNG.normal(size=(3, 4)),
    "y": RNG.normal(size=(3, 4)),
    "p": RNG.uniform(0.2, 0.9, size=(3, 4)),
    "m": RNG.normal(size=(4, 4)) + 4 * np.eye(4),
    "v": RNG.normal(size=4),
    "image": RNG.normal(size=(2, 4, 6, 5)),
    "kernel": RNG.normal(size=(4, 2, 3, 2)),
    "signal": RNG.normal(size=(2, 4, 9)),
}
WHOLE: dict[str, np.ndarray] = {
    "i": RNG.integers(0, 3, size=(3, 4)),
    "j": RNG.integers(0, 4, size=3),
    "b": RNG.normal(size=(3, 4)) > 0,
}

ELEMENTWISE = """
torch.abs(x)  torch.neg(x)  torch.exp(x)  torch.exp2(x)  torch.expm1(x)  torch.log(p)  torch.log1p(p)  torch.log2(p)
torch.log10(p)  torch.sqrt(p)  torch.rsqrt(p)  torch.reciprocal(p)  torch.sin(x)  torch.cos(x)  torch.tan(p)
torch.asin(p)  torch.acos(p)  torch.atan(x)  torch.sinh(x)  torch.cosh(x)  torch.tanh(x)  torch.asinh(x)
torch.acosh(1+p)  torch.atanh(p)  torch.erf(x)  torch.erfc(x)  torch.erfinv(p)  torch.lgamma(p)  torch.digamma(p)
torch.sigmoid(x)  torch.sign(x)  torch.floor(x)  torch.ceil(x)  torch.round(x)  torch.trunc(x)  torch.frac(x)
torch.square(x)  torch.sinc(x)  torch.logit(p)  torch.nan_to_num(x)  torch.deg2rad(x)  torch.i0(x)
torch.special.i0e(x)  torch.special.entr(p)  torch.special.xlog1py(x,p)  torch.clamp(x,-0.5,0.6)  torch.clamp(x,max=y)
x.clamp_min(0.1)  torch.add(x,y,alpha=3)  torch.sub(x,y,alpha=0.5)  2-x  torch.rsub(x,y,alpha=2)  x*y  x/p
torch.div(x,p,rounding_mode="floor")  torch.div(x,p,rounding_mode="trunc")  torch.pow(p,y)  p**3  2.0**x  x**2
torch.remainder(x,p)  torch.fmod(x,p)  torch.maximum(x,y)  torch.minimum(x,y)  torch.fmax(x,y)  torch.atan2(x,y)
torch.hypot(x,y)  torch.copysign(x,y)  torch.logaddexp(x,y)  torch.logaddexp2(x,y)  torch.xlogy(x,p)
torch.lerp(x,y,0.3)  torch.lerp(x,y,p)  torch.where(b,x,y)  torch.where(x>y,x,0.0)  torch.addcmul(x,y,p,value=2)
torch.addcdiv(x,y,p)  torch.masked_fill(x,b,0.5)  x.masked_fill(b,y[0,0])  F.relu(x)  F.relu6(3*x)  F.hardtanh(x)
F.elu(x,0.7)  F.selu(x)  F.celu(x)  F.gelu(x)  F.gelu(x,approximate="tanh")  F.leaky_relu(x,0.2)  F.softplus(x,2.0)
F.logsigmoid(x)  F.silu(x)  F.mish(x)  F.hardswish(3*x)  F.hardsigmoid(3*x)  F.hardshrink(x)  F.softshrink(x)
F.tanhshrink(x)  F.threshold(x,0.1,2.0)  F.prelu(x,v)  F.glu(x)  F.softsign(x)  i+x  i*2.5  i/2  i//2  (i%2).double()
x.to(torch.float32)  x.float()*y.float()  torch.logical_and(b,x>0).double()  (b|(x>0)).double()  (~b).double()
torch.isfinite(x).double()  x.half().float()
"""

ARRANGING = """
x.view(4,3)  x.reshape(-1)  x.t()  x.T@y  x.transpose(0,1)  image.permute(3,0,2,1)  x.unsqueeze(1)  x[None].squeeze(0)
x.expand(2,3,4)  x.flatten()  torch.cat([x,y],1)  torch.stack([x,y],-1)  x.chunk(2,1)[1]  x.split(3,1)[1]
x.split([1,3],1)[1]  x.unbind(0)[2]  x.repeat(2,1,3)  x.tile(2)  torch.flip(x,[0,1])  torch.roll(x,1)
torch.roll(x,[1,-1],[0,1])  torch.diagonal(image,1,2,3)  torch.diag(v)  torch.diag_embed(x)  torch.triu(x)
torch.tril(m,-1)  x.narrow(1,1,2)  x[1:,::2]  x[..., -1]  x[:,None,2]  x[j]  x[:,j]  x[b]
x[torch.tensor([0,2]),torch.tensor([1,3])]  x.index_select(1,j)  x.gather(0,i)  x.gather(1,i)
x.scatter(0,p.argsort(0),y)  x.scatter(0,i,0.5)  x.scatter_add(1,i,y)  x.scatter_reduce(0,i,y,"amax")
x.scatter_reduce(0,i,y,"mean")  x.scatter_reduce(0,i,y,"sum",include_self=False)  x.index_add(1,j,y[:,:3])
x.index_copy(1,torch.tensor([3,0,1]),y[:,:3])  x.index_fill(1,j,0.3)  x.index_put((j[:2],),y[:2])
x.index_put((j,),y,accumulate=True)  x.masked_scatter(b,y)  torch.take_along_dim(x,i,0)  torch.select_scatter(x,v,0,1)
torch.slice_scatter(x,y[:,:2],1,1,3)  torch.diagonal_scatter(m,v)  F.pad(x,(1,2))  F.pad(x,(1,-1,0,2),value=0.5)
F.pad(signal,(2,1),mode="reflect")  F.pad(image,(2,1,1,2),mode="replicate")  F.pad(signal,(1,2),mode="circular")
x.unfold(1,2,1)  F.unfold(image,(3,2),padding=1,stride=2)  F.fold(image.reshape(2,8,15),(4,6),(2,2))
F.pixel_shuffle(image,2)  F.embedding(i,m)  F.embedding(i,m,padding_idx=1)
F.embedding_bag(j,m,torch.tensor([0,2]),mode="mean")  F.one_hot(i,3)*2.0  torch.meshgrid(v,v[:2],indexing="ij")[0]
torch.zeros_like(x)+x  torch.full_like(x,2.0)*x  x.new_ones(4)*x  torch.arange(4)*x  torch.linspace(0,1,4)*x
torch.eye(4,dtype=x.dtype)@x.T  torch.cartesian_prod(v,v)  x.rot90()  x.movedim(0,1)
"""

REDUCTIONS = """
x.sum()  x.sum(1)  x.sum((0,1),keepdim=True)  x.mean()  x.mean(0)  x.prod()  x.prod(1)  x.amax(1)  x.amin((0,1))
x.max()  x.max(0).values  x.min(1,keepdim=True).values  x.var()  x.var(1,unbiased=False)  x.std(0)
torch.var_mean(x,1)[0]  torch.std_mean(x)[1]  torch.cumsum(x,1)  torch.cumprod(x,0)  torch.logcumsumexp(x,1)
torch.cummax(x,1).values  torch.cummin(x,0).values  torch.logsumexp(x,1)  torch.softmax(x,1)  torch.log_softmax(x,0)
F.softmin(x,1)  x.norm()  x.norm(1)  torch.linalg.vector_norm(x,3,1)  torch.linalg.vector_norm(x,float("inf"))
torch.linalg.matrix_norm(m)  torch.dist(x,y)  F.normalize(x,dim=1)  F.cosine_similarity(x,y)  torch.cdist(x,y)
F.pdist(x)  F.pairwise_distance(x,y)  x.sort(1).values  x.sort(0,descending=True).values  x.topk(2,1).values
x.kthvalue(2,1).values  x.median(1).values  x.median()  x.nansum()  torch.trace(m)  x.argmax(1).double()
x.count_nonzero().double()  torch.any(b,1).double()  torch.searchsorted(v.sort().values,x).double()  torch.mm(x,m)
x@v  torch.dot(v,v)  torch.outer(v,v)  torch.bmm(signal,signal.mT)  torch.addmm(x,y,m,beta=0.5,alpha=2.0)
torch.addmv(x[:,0],y,v)  torch.addr(m,v,v)  torch.baddbmm(signal[:,:,:4],signal,signal.mT)
torch.einsum("ij,jk,k->i",x,m,v)  torch.tensordot(x,y,2)  torch.kron(x,m)  F.linear(x,m,v)
F.bilinear(x,y,signal[:,:,:4])  torch.linalg.multi_dot([x,m,m])  torch.linalg.solve(m,v)  torch.linalg.solve(m,x.T)
torch.linalg.inv(m)  torch.linalg.det(m)  torch.linalg.slogdet(m)[1]  torch.linalg.cholesky(m@m.T)
torch.linalg.solve_triangular(m.triu(),x.T,upper=True)  torch.linalg.qr(m)[1]  torch.mv(x,v)
torch.linalg.eigvalsh(m+m.T)  torch.linalg.svdvals(m)  torch.fft.rfft(x).abs()  torch.fft.irfft(torch.fft.rfft(x),4)
torch.fft.fft2(x).real  torch.fft.ifft(x,norm="ortho").imag  torch.fft.fftshift(x)
"""

NETWORKS = """
F.conv1d(signal,image[:,:,:3,0],padding=1)  F.conv1d(signal,image[:,:,:3,0],v[:2],stride=2,dilation=2)
F.conv2d(image,kernel,groups=2,padding=(1,0))  F.conv2d(image,kernel,v,stride=2,groups=2)
F.conv_transpose1d(signal,image[:,:,:3,0].mT.reshape(4,3,2))
F.conv_transpose2d(image,kernel,stride=2,padding=1,output_padding=1,dilation=(2,1))  F.max_pool1d(signal,2)
F.max_pool2d(image,(3,2),stride=2,padding=1,ceil_mode=True)  F.max_pool2d(image,2,dilation=2)
F.avg_pool1d(signal,3,padding=1)  F.avg_pool2d(image,2,ceil_mode=True,count_include_pad=False,padding=1)
F.avg_pool2d(image,(3,2),divisor_override=5)  F.adaptive_avg_pool1d(signal,4)  F.adaptive_avg_pool2d(image,(3,2))
F.lp_pool1d(signal,2,3)  F.layer_norm(x,(4,),v,v)  F.group_norm(image,2,v,v)
F.batch_norm(signal,None,None,v,v,training=True)  F.batch_norm(image,v.detach(),p[0].detach(),training=False)
F.instance_norm(signal)  F.rms_norm(x,(4,),v)  F.local_response_norm(signal,2)
F.scaled_dot_product_attention(image,image,image)  F.scaled_dot_product_attention(image,image,image,is_causal=True)
F.scaled_dot_product_attention(signal,signal,signal,attn_mask=m)  F.cross_entropy(x,j)  F.cross_entropy(x,p)
F.cross_entropy(x,j,weight=p[0].detach(),label_smoothing=0.1,reduction="sum")  F.nll_loss(x,j,ignore_index=1)
F.mse_loss(x,y)  F.l1_loss(x,y,reduction="none")  F.smooth_l1_loss(x,y)  F.huber_loss(x,y,delta=0.3)
F.binary_cross_entropy(p,b.double())  F.binary_cross_entropy_with_logits(x,p)  F.kl_div(x,p,reduction="batchmean")
F.poisson_nll_loss(x,p)  F.hinge_embedding_loss(x,b*2-1)  F.margin_ranking_loss(x,y,b*2-1)
F.cosine_embedding_loss(x,y,j*0+1)  F.soft_margin_loss(x,b*2.0-1)  F.multi_margin_loss(x,j)
F.triplet_margin_loss(x,y,p)  F.interpolate(signal,size=5,mode="linear")  F.interpolate(image,scale_factor=2)
F.interpolate(image,size=(4,7),mode="bilinear",align_corners=True)
F.grid_sample(image,torch.tanh(image[:,:2,:,:2].reshape(2,3,4,2)),align_corners=False)
F.ctc_loss(torch.log_softmax(signal.permute(2,0,1),-1),torch.tensor([[1,2,1],[3,3,0]]),(9,7),(3,2))
F.ctc_loss(torch.log_softmax(signal.permute(2,0,1),-1),torch.tensor([1,2,1,3,3]),(9,7),(3,2),reduction="sum")
"""

# Functions of which PyTorch has no second derivative, and those whose gradient it gives along other lines.
ONCE = (
    "ctc_loss",
    "hardsigmoid",
    "embedding_bag",
    "pdist",
    "grid_sample",
    "cdist",
    "special.i0e",
    "torch.i0",
    "multi_margin",
    "scaled_dot",
)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


def cases(text: str) -> list[str]:
    return [case for line in text.strip().splitlines() for case in line.split("  ")]


def evaluated(case: str, given: dict[str, Any], names: list[str], xs: Any) -> Any:
    found = eval(case, {"torch": torch, "F": F, **given, **dict(zip(names, xs, strict=True))})
    return found.sum(0) * 1.0 if isinstance(found, tuple) else found


def numbers(gradient: Any, like: Any) -> np.ndarray:
    """A gradient of PyTorch's; zeros where it has none."""
    return 0 * like if gradient is None else gradient.detach().numpy(force=True)


def judge(case: str) -> None:
    """Compare one operator's value and gradient, and the gradient of its gradient's squares, with PyTorch's."""
    code = compile(case, "case", "eval")
    names = [name for name in VALUES if name in code.co_names]
    whole = {name: torch.from_numpy(x) for name, x in WHOLE.items()}
    arrays = [VALUES[name] for name in names]
    ours = cg.from_torch(lambda *xs: evaluated(case, whole, names, xs))
    given = [torch.tensor(x, requires_grad=True) for x in arrays]
    expected = evaluated(case, whole, names, given)
    found = ours(*arrays)
    assert found.shape == tuple(expected.shape) and str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    near = 1e-8 if found.dtype == np.float64 else 1e-3
    np.testing.assert_allclose(found, expected.detach().numpy(force=True), rtol=near, atol=near)
    if not expected.requires_grad:
        return
    weights = np.random.default_rng(1).normal(size=found.shape)
    loss = lambda *xs: (ours(*xs) * weights).sum()
    once = torch.autograd.grad(
        (expected * torch.from_numpy(weights)).sum(), given, create_graph=True, allow_unused=True
    )
    argnums = tuple(range(len(names)))
    gradients = cg.grad(loss, argnums=argnums)(*arrays)
    for ours_, theirs in zip(gradients, once, strict=True):
        np.testing.assert_allclose(ours_, numbers(theirs, ours_), rtol=10 * near, atol=10 * near)
    lengths = [(g * g).sum() for g in once if g is not None and g.requires_grad]
    if not lengths or any(word in case for word in ONCE):
        return
    twice = torch.autograd.grad(sum(lengths), given, allow_unused=True)
    length = lambda *xs: sum((g * g).sum() for g in cg.grad(loss, argnums=argnums)(*xs))
    for ours_, theirs in zip(cg.grad(length, argnums=argnums)(*arrays), twice, strict=True):
        np.testing.assert_allclose(ours_, numbers(theirs, ours_), rtol=100 * near, atol=100 * near)


def complaints(text: str) -> list[str]:
    found = []
    for case in cases(text):
        try:
            judge(case)
        except Exception as error:
            found.append(f"{case}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return found


def test_elementwise_operators() -> None:
    assert complaints(ELEMENTWISE) == []


def test_operators_that_arrange_pick_and_write() -> None:
    assert complaints(ARRANGING) == []


def test_reductions_products_and_factors() -> None:
    assert complaints(REDUCTIONS) == []


def test_operators_of_networks() -> None:
    assert complaints(NETWORKS) == []
