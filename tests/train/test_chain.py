"""The network as training sees it, against torch's own modules."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from chains import SHAPE, tiny_batch, tiny_chain
from torch import Tensor, nn

from surebound.errors import UnsupportedOpError, UsageError
from surebound.network.architectures import Normalise
from surebound.train.chain import Chain, Conv, Dense, absolute, flatten, l1_norm, linear
from surebound.train.interval import propagate

# ── Values ──


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_are_those_of_the_module_in_evaluation(norm: bool, dtype: torch.dtype) -> None:
    chain, x = tiny_chain(norm=norm, dtype=dtype), tiny_batch(size=5, dtype=dtype).x
    for m in chain.module:
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(m.running_mean, -0.5, 0.5)
            nn.init.uniform_(m.running_var, 0.5, 2.0)
    got, expected = chain.layers().logits(x), chain.module.eval()(x)
    assert got.dtype == dtype and chain.layers().natural is None
    torch.testing.assert_close(got, expected, rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=1e-12)


def test_batch_norms_in_training_are_torchs_own() -> None:
    """Values, gradients of all parameters, and running averages, over three different batches."""
    chain = tiny_chain(norm=True)
    module = copy.deepcopy(chain.module).train()
    for seed in range(3):
        batch = tiny_batch(seed=seed, size=7)
        layers = chain.layers(batch.x)
        expected = module(batch.x)
        assert layers.natural is not None
        torch.testing.assert_close(layers.natural, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(layers.logits(batch.x), expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(layers.clean_logits(batch.x), expected, rtol=1e-10, atol=1e-10)
        assert chain.has_batch_norm
        for (name, got), want in zip(chain.module.named_buffers(), module.buffers(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12, msg=name)
        for logits in (layers.natural, layers.logits(batch.x)):  # folded or not, the gradient is the same
            F.cross_entropy(logits, batch.y).backward(retain_graph=True)
            module.zero_grad()
            F.cross_entropy(module(batch.x), batch.y).backward()
            module.load_state_dict(chain.module.state_dict())  # undo the second update of the averages
            for (name, p), q in zip(chain.module.named_parameters(), module.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-10, msg=name)
            chain.module.zero_grad()


@pytest.mark.parametrize("options", [{"momentum": None}, {"momentum": 0.3}, {"affine": False}, {"eps": 0.1}])
def test_batch_norms_with_other_options(options: dict[str, float | bool | None]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3, **options), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
    ).double()  # type: ignore[arg-type]
    chain, reference = Chain(module, SHAPE), copy.deepcopy(module).train()
    for seed in range(3):
        x = tiny_batch(seed=seed).x
        torch.testing.assert_close(chain.layers(x).natural, reference(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(chain.layers().logits(x), reference.eval()(x), rtol=1e-10, atol=1e-10)


def test_a_batch_norm_needs_more_than_one_value() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)).double()
    with pytest.raises(UsageError, match="one value per channel; expected a batch of more than one sample"):
        Chain(module, SHAPE).layers(tiny_batch(size=1).x)


def test_without_normalisation_pixels_go_in_as_they_are() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    chain, x = Chain(module, SHAPE), tiny_batch().x
    torch.testing.assert_close(chain.layers().normalise(x), x, rtol=0, atol=0)
    torch.testing.assert_close(chain.layers(x).logits(x), module(x), rtol=1e-12, atol=1e-12)


def test_logits_from_a_later_layer() -> None:
    chain, x = tiny_chain(norm=True), tiny_batch().x
    module, layers = chain.module.eval(), chain.layers()
    for start, before in ((1, 4), (2, 8), (3, 11)):  # modules up to the ReLU before affine layer `start`
        torch.testing.assert_close(
            layers.logits(module[:before](x), start=start), module(x), rtol=1e-12, atol=1e-12, msg=str(start)
        )


# ── Affine maps ──

CONVOLUTIONS = [
    {"kernel_size": 3},
    {"kernel_size": 4, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (0, 2)},
    {"kernel_size": 3, "stride": 3, "dilation": 2, "padding": 2},
    {"kernel_size": (2, 3), "dilation": (3, 1), "groups": 2, "padding": (1, 0)},
    {"kernel_size": 1, "stride": 2, "groups": 4},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("size", [(7, 8), (9, 6)])
def test_a_convolutions_shape_and_adjoint(options: dict[str, int], size: tuple[int, int]) -> None:
    """⟨A x, g⟩ = ⟨x, Aᵀ g⟩ for random x and g, and the shape is that of torch's output."""
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 8, **options).double()
    x = torch.randn(3, 4, *size, dtype=torch.float64)
    flat = conv(x).flatten(1).shape[1]
    chain = Chain(nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(flat, 2)).double(), (4, *size))
    layer = chain.layers().affine[0]
    assert layer.shape == chain.shapes[1] == tuple(conv(x).shape[1:])
    torch.testing.assert_close(layer(x), conv(x), rtol=1e-12, atol=1e-12)
    g = torch.randn(3, *layer.shape, dtype=torch.float64)
    back = layer.adjoint(g)
    assert back.shape == x.shape
    torch.testing.assert_close((linear(layer)(x) * g).sum(), (x * back).sum(), rtol=1e-11, atol=1e-11)
    bare = F.conv2d(x, conv.weight.abs(), None, conv.stride, conv.padding, conv.dilation, conv.groups)
    torch.testing.assert_close(absolute(layer)(x), bare, rtol=1e-12, atol=1e-12)


def test_a_matrix_and_its_adjoint() -> None:
    torch.manual_seed(0)
    layer = Dense(torch.randn(5, 72).double(), torch.randn(5).double(), SHAPE)
    x, g = torch.randn(3, *SHAPE).double(), torch.randn(3, 5).double()
    torch.testing.assert_close(layer(x), x.reshape(3, -1) @ layer.weight.T + layer.bias, rtol=1e-12, atol=1e-12)
    assert layer.adjoint(g).shape == x.shape and layer.shape == (5,)
    torch.testing.assert_close((linear(layer)(x) * g).sum(), (x * layer.adjoint(g)).sum(), rtol=1e-11, atol=1e-11)
    assert linear(layer).bias is None and absolute(layer).bias is None


def test_weights_and_their_l1_norm() -> None:
    chain = tiny_chain(norm=True)
    convs = [m.weight for m in chain.module if isinstance(m, nn.Conv2d | nn.Linear)]
    assert all(a is b for a, b in zip(chain.weights(), convs, strict=True))
    expected = sum(float(w.detach().abs().sum()) for w in convs[2:])
    assert l1_norm(chain.weights(start=2)).item() == pytest.approx(expected, rel=1e-12)
    every, later = list(chain.module.parameters()), list(chain.module[8:].parameters())
    assert {id(p) for p in chain.parameters()} == {id(p) for p in every}
    assert {id(p) for p in chain.parameters(start=2)} == {id(p) for p in later}


def test_detached_layers_have_the_same_numbers_and_no_gradients() -> None:
    chain, x = tiny_chain(norm=True), tiny_batch().x
    layers = chain.layers(x)
    frozen = layers.detach()
    for a, b in zip(frozen.affine, layers.affine, strict=True):
        assert torch.equal(a.weight, b.weight) and not a.weight.requires_grad and b.weight.requires_grad
        assert a.bias is not None and b.bias is not None
        assert torch.equal(a.bias, b.bias) and not a.bias.requires_grad
    assert frozen.natural is not None and not frozen.natural.requires_grad
    assert not frozen.logits(x).requires_grad


# ── Layouts ──


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("norm", [False, True])
def test_images_stay_channels_last_forwards_and_backwards(channels: int, norm: bool) -> None:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(6), nn.BatchNorm2d(5)] if norm else [nn.Identity(), nn.Identity()]
    modules = [nn.Conv2d(channels, 6, 3, 1, 1), norms[0], nn.ReLU(), nn.Conv2d(6, 5, 4, 2, 1), norms[1], nn.ReLU()]
    module = nn.Sequential(*[m for m in modules if not isinstance(m, nn.Identity)], nn.Flatten(), nn.Linear(80, 3))
    chain = Chain(module, (channels, 8, 8))
    x = torch.rand(4, channels, 8, 8)
    seen: list[tuple[str, Tensor]] = []

    def record(name: str) -> Callable[[Tensor], None]:
        return lambda g: seen.append((name, g))

    layers = chain.layers(x)
    for sign in (linear, absolute):
        pixels = x.clone().requires_grad_()
        value = (layers.normalise(pixels) + layers.normalise(pixels + 0.1)) / 2  # as a box's centre is made
        for k, layer in enumerate(layers.affine[:-1]):
            value = sign(layer)(value)
            value.register_hook(record(f"gradient {k}"))
            seen.append((f"value {k}", value))
            value = value.relu()
            value.register_hook(record(f"gradient after ReLU {k}"))
        flatten(value).square().sum().backward(retain_graph=True)
    back = layers.affine[-1].adjoint(torch.randn(4, 3))
    seen += [("adjoint", back), ("adjoint of a convolution", layers.affine[1].adjoint(back))]
    seen += [("weight gradient", w.grad) for w in chain.weights()[:2] if w.grad is not None]
    seen += [("interval end", end) for ends in propagate(layers, x - 0.1, x + 0.1, stop=2) for end in ends]
    assert len(seen) == 20
    for name, tensor in seen:
        assert tensor.is_contiguous(memory_format=torch.channels_last), name
        assert not tensor.is_contiguous() or tensor.shape[1] == 1, name


def test_flattening_keeps_the_order_of_torch() -> None:
    x = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    assert torch.equal(flatten(x), x.flatten(1))
    weights = torch.randn(2, 60)
    (flatten(x) * weights).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, weights.reshape(x.shape))
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


# ── What does not fit ──

_FIRST, _LAST = nn.Conv2d(2, 4, 3), nn.Linear(64, 3)
_SHARED = nn.Linear(4, 4)
MISFITS: list[tuple[list[nn.Module], str]] = [
    ([_FIRST, nn.Sigmoid(), nn.Flatten(), _LAST], r"module '1' \(Sigmoid\) is not supported in training"),
    ([_FIRST, nn.Dropout(), nn.Flatten(), _LAST], r"module '1' \(Dropout\) is not supported in training"),
    ([_FIRST, nn.Sequential(nn.ReLU()), nn.Flatten(), _LAST], r"\(Sequential\) is not supported in training"),
    ([_FIRST, nn.Flatten(), _LAST], r"module '2' \(Linear\) follows another affine layer without a ReLU between"),
    ([_FIRST, nn.ReLU(), nn.ReLU(), nn.Flatten(), _LAST], r"module '2' \(ReLU\) must follow an affine layer"),
    ([nn.ReLU(), nn.Flatten(), _LAST], r"module '0' \(ReLU\) must follow an affine layer"),
    ([_FIRST, nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), _LAST], r"module '2' \(BatchNorm2d\) must follow a Conv2d"),
    ([_FIRST, nn.Flatten(), nn.BatchNorm1d(64), nn.ReLU(), _LAST], r"'2' \(BatchNorm1d\) must follow a Conv2d"),
    ([_FIRST, nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), _LAST], r"'2' \(BatchNorm2d\) must"),
    ([_FIRST, nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), nn.Flatten(), _LAST], "needs running averages"),
    ([_FIRST, nn.ReLU(), Normalise([0.0], [1.0]), nn.Flatten(), _LAST], r"module '2' \(Normalise\) must come first"),
    ([Normalise([0.0], [1.0]), Normalise([0.0], [1.0]), nn.Flatten(), _LAST], r"'1' \(Normalise\) must come first"),
    ([nn.Conv2d(2, 4, 3, padding="same"), nn.ReLU(), nn.Flatten(), _LAST], "needs zero padding given in numbers"),
    ([nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(), _LAST], "needs zero padding"),
    ([_FIRST, nn.ReLU(), nn.Flatten(2), _LAST], r"module '2' \(Flatten\) must flatten all dimensions of a sample"),
    ([nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), _SHARED, nn.ReLU(), _SHARED], r"'5' \(Linear\) appears twice"),
    ([_FIRST, nn.ReLU(), nn.Flatten(), _LAST, nn.ReLU()], "must end in a Linear layer, without a ReLU after it"),
    ([_FIRST, nn.ReLU(), nn.Conv2d(4, 3, 4), nn.Flatten()], "must end in a Linear layer"),
    ([nn.Flatten()], "must end in a Linear layer"),
    ([nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), _LAST], r"\(Conv2d\) gets inputs of shape \[2, 6, 6\]; expected"),
    (
        [_FIRST, nn.ReLU(), nn.Flatten(), nn.Linear(65, 3)],
        r"'3' \(Linear\) gets inputs of shape \[4, 4, 4\]; expected 65",
    ),
    ([nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.ReLU(), _LAST], r"gets inputs of shape \[4\]"),
]


@pytest.mark.parametrize(("modules", "message"), MISFITS, ids=[str(i) for i in range(len(MISFITS))])
def test_what_does_not_fit_is_named(modules: list[nn.Module], message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        Chain(nn.Sequential(*modules), SHAPE)


def test_one_relu_module_may_stand_in_several_places() -> None:
    torch.manual_seed(0)
    relu = nn.ReLU()
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 3)).double()
    x = tiny_batch().x
    torch.testing.assert_close(Chain(module, SHAPE).layers().logits(x), module(x), rtol=1e-12, atol=1e-12)
    assert isinstance(tiny_chain().layers().affine[0], Conv)
