"""The network as training sees it, against torch's own modules."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from branched import GRAPHS, graph, module_parameters
from chains import SHAPE, affine_ops, tiny_batch, tiny_chain
from torch import Tensor, nn

from surebound.errors import NetworkError, UnsupportedOpError, UsageError
from surebound.network.architectures import Normalise
from surebound.network.conv import Conv
from surebound.network.graph import value
from surebound.network.linear import Linear
from surebound.network.op import absolute
from surebound.train.interval import propagate
from surebound.train.learner import Learner, flatten, image_layout, l1_norm

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
    chain, reference = Learner(module, SHAPE), copy.deepcopy(module).train()
    for seed in range(3):
        x = tiny_batch(seed=seed).x
        torch.testing.assert_close(chain.layers(x).natural, reference(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(chain.layers().logits(x), reference.eval()(x), rtol=1e-10, atol=1e-10)


def test_a_batch_norm_needs_more_than_one_value() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)).double()
    with pytest.raises(UsageError, match="one value per channel; expected a batch of more than one sample"):
        Learner(module, SHAPE).layers(tiny_batch(size=1).x)


def test_without_normalisation_pixels_go_in_as_they_are() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    chain, x = Learner(module, SHAPE), tiny_batch().x
    torch.testing.assert_close(chain.layers().normalise(x), x, rtol=0, atol=0)
    torch.testing.assert_close(chain.layers(x).logits(x), module(x), rtol=1e-12, atol=1e-12)


def test_logits_from_a_later_layer() -> None:
    chain, x = tiny_chain(norm=True), tiny_batch().x
    module, layers = chain.module.eval(), chain.layers()
    for start, before in ((1, 4), (2, 7), (3, 11)):  # modules up to the ReLU before affine layer `start`
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
    chain = Learner(nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(flat, 2)).double(), (4, *size))
    layer = affine_ops(chain.layers())[0]
    assert layer.shape == tuple(conv(x).shape[1:])
    torch.testing.assert_close(value(layer, x), conv(x), rtol=1e-12, atol=1e-12)
    g = torch.randn(3, *layer.shape, dtype=torch.float64)
    (back,) = layer.adjoint(g)
    assert back.shape == x.shape
    torch.testing.assert_close((layer.apply(x) * g).sum(), (x * back).sum(), rtol=1e-11, atol=1e-11)
    bare = F.conv2d(x, conv.weight.abs(), None, conv.stride, conv.padding, conv.dilation, conv.groups)
    torch.testing.assert_close(absolute(layer).apply(x), bare, rtol=1e-12, atol=1e-12)


def test_a_matrix_on_images_and_its_adjoint() -> None:
    torch.manual_seed(0)
    layer = Linear(torch.randn(5, 72).double(), torch.randn(5).double(), image=SHAPE)
    x, g = torch.randn(3, *SHAPE).double(), torch.randn(3, 5).double()
    torch.testing.assert_close(value(layer, x), x.reshape(3, -1) @ layer.weight.T + layer.bias, rtol=1e-12, atol=1e-12)
    (back,) = layer.adjoint(g)
    assert back.shape == x.shape and layer.shape == (5,)
    torch.testing.assert_close((layer.apply(x) * g).sum(), (x * back).sum(), rtol=1e-11, atol=1e-11)


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
    for a, b in zip(affine_ops(frozen), affine_ops(layers), strict=True):
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
    chain = Learner(module, (channels, 8, 8))
    x = torch.rand(4, channels, 8, 8)
    seen: list[tuple[str, Tensor]] = []

    def record(name: str) -> Callable[[Tensor], None]:
        return lambda g: seen.append((name, g))

    layers = chain.layers(x)
    for make in (lambda op: op, absolute):
        pixels = x.clone().requires_grad_()
        image = image_layout((layers.normalise(pixels) + layers.normalise(pixels + 0.1)) / 2)  # as a box's centre is
        for k, op in enumerate(affine_ops(layers)[:-1]):
            image = make(op).apply(image)
            image.register_hook(record(f"gradient {k}"))
            seen.append((f"value {k}", image))
            image = image.relu()
            image.register_hook(record(f"gradient after ReLU {k}"))
        flatten(image).square().sum().backward(retain_graph=True)
    (back,) = layers.last.adjoint(torch.randn(4, 3))
    seen += [("adjoint", back), ("adjoint of a convolution", affine_ops(layers)[1].adjoint(back)[0])]
    seen += [("weight gradient", w.grad) for w in chain.weights()[:2] if w.grad is not None]
    seen += [("interval end", end) for ends in propagate(layers, x - 0.1, x + 0.1).before for end in ends]
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


# ── Other networks than chains ──


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_computes_what_its_module_does(name: str) -> None:
    """In evaluation, and in training with the batch's own statistics, whose running averages are torch's."""
    learner, x = graph(name), tiny_batch(size=5).x
    module = copy.deepcopy(learner.module).train()
    torch.testing.assert_close(learner.layers(x).clean_logits(x), module(x), rtol=1e-9, atol=1e-9)
    for (key, got), want in zip(learner.module.named_buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10, msg=key)
    torch.testing.assert_close(learner.layers().logits(x), module.eval()(x), rtol=1e-9, atol=1e-9)
    assert {id(p) for p in learner.parameters()} == {id(p) for p in module_parameters(learner)}


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_of_a_graph_are_torchs_own(name: str) -> None:
    learner, batch = graph(name), tiny_batch(size=5)
    module = copy.deepcopy(learner.module).train()
    F.cross_entropy(learner.layers(batch.x).clean_logits(batch.x), batch.y).backward()
    F.cross_entropy(module(batch.x), batch.y).backward()
    for (key, p), q in zip(learner.module.named_parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-7, atol=1e-9, msg=key)


def test_blocks_end_where_one_tensor_carries_everything() -> None:
    assert tiny_chain().blocks == 4
    residual = graph("residual")
    assert residual.blocks == 4  # the stem, two residual blocks, the matrix
    layers, x = residual.layers(), tiny_batch().x
    modules = residual.module.eval()
    for start, before in ((1, 4), (2, 5), (3, 6)):
        torch.testing.assert_close(
            layers.logits(modules[:before](x), start=start), modules(x), rtol=1e-10, atol=1e-10, msg=str(start)
        )
    counts = [len(residual.parameters(start=k)) for k in range(4)]
    assert counts == sorted(counts, reverse=True) and counts[3] == 2
    assert graph("no cut").blocks == 1


# ── What does not fit ──

_FIRST, _LAST = nn.Conv2d(2, 4, 3), nn.Linear(64, 3)
_NORM = nn.BatchNorm2d(4)
MISFITS: list[tuple[list[nn.Module], str]] = [
    ([_FIRST, nn.Dropout(), nn.ReLU(), nn.Flatten(), _LAST], r"module '1' \(Dropout\) drops numbers at random"),
    ([_FIRST, nn.Softmax(1), nn.Flatten(), _LAST], r"\(Softmax\) of module Sequential: this module is not supported"),
    ([_FIRST, nn.Flatten(), _LAST], "at least one layer with ReLUs"),
    ([_FIRST, nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), nn.Flatten(), _LAST], "needs running averages"),
    ([_FIRST, _NORM, nn.ReLU(), nn.Conv2d(4, 4, 1), _NORM, nn.Flatten(), _LAST], r"\(BatchNorm2d\) appears twice"),
    ([Normalise([0.0, 0.0], [1.0, 0.0]), _FIRST, nn.ReLU(), nn.Flatten(), _LAST], "needs positive deviations"),
    ([nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(), _LAST], "expected zeros"),
    ([nn.ConvTranspose2d(3, 4, 3), nn.ReLU(), nn.Flatten(), _LAST], r"\(ConvTranspose2d\) .* cannot be spread over"),
    ([_FIRST, nn.ReLU(), nn.Conv2d(4, 3, 4)], r"outputs of shape \[3, 1, 1\]; expected one axis of logits"),
    ([nn.Flatten()], "needs at least one layer"),
    ([nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), _LAST], r"\(Conv2d\) of module Sequential: a kernel of shape"),
    ([_FIRST, nn.ReLU(), nn.Flatten(), nn.Linear(65, 3)], r"\(Linear\) of module Sequential: a matrix of shape"),
    ([_FIRST, nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), _LAST], "5 channels do not fit"),
]


@pytest.mark.parametrize(("modules", "message"), MISFITS, ids=[str(i) for i in range(len(MISFITS))])
def test_what_does_not_fit_is_named(modules: list[nn.Module], message: str) -> None:
    with pytest.raises((UnsupportedOpError, NetworkError), match=message):
        Learner(nn.Sequential(*modules), SHAPE)


def test_a_parameter_that_no_product_uses_is_named() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.last = nn.Parameter(torch.zeros(72)), nn.Linear(72, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x.flatten(1) + self.shift).relu())

    with pytest.raises(UnsupportedOpError, match="parameter 'shift' is used by add; expected it in conv1d, conv2d"):
        Learner(Shifted(), SHAPE)


def test_one_relu_module_may_stand_in_several_places() -> None:
    torch.manual_seed(0)
    relu = nn.ReLU()
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 3)).double()
    x = tiny_batch().x
    torch.testing.assert_close(Learner(module, SHAPE).layers().logits(x), module(x), rtol=1e-12, atol=1e-12)
    assert isinstance(affine_ops(tiny_chain().layers())[0], Conv)
