"""onelaunch.torch.patch: models whose logits are not made in training; with transformers' models where installed."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
ot = pytest.importorskip("onelaunch.torch")

from onelaunch.torch.deferred import DeferredLogits  # noqa: E402

pytestmark = pytest.mark.torch
CLASSES = 31


class Model(torch.nn.Module):
    """A language model that computes its loss as models did before ``loss_function``."""

    def __init__(self, bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(CLASSES, 8)
        self.lm_head = torch.nn.Linear(8, CLASSES, bias=bias)

    def logits(self, hidden):
        return self.lm_head(hidden)

    def forward(self, tokens, labels=None):
        logits = self.logits(torch.tanh(self.embed(tokens)))
        loss = None
        if labels is not None:
            shifted = logits[..., :-1, :].contiguous()
            loss = torch.nn.CrossEntropyLoss()(shifted.view(-1, CLASSES), labels[..., 1:].contiguous().view(-1))
        return loss, logits


class Capped(Model):
    def logits(self, hidden):
        return torch.tanh(self.lm_head(hidden) / 3.0) * 3.0


class Scaled(Model):
    def logits(self, hidden):
        return (0.25 * self.lm_head(hidden)).float() / 2


class Strange(Model):
    """What can't be written down: the logits are made."""

    def logits(self, hidden):
        return torch.log_softmax(self.lm_head(hidden) + torch.ones(CLASSES), -1) * torch.tensor(2.0)


def batch(count=2, length=7):
    tokens = torch.randint(0, CLASSES, (count, length), generator=torch.Generator().manual_seed(1))
    labels = tokens.clone()
    labels[:, :3] = -100
    return tokens, labels


def results(model, *args, **options):
    """Loss and all gradients of a call."""
    model.zero_grad()
    out = model(*args, **options)
    loss = out[0] if isinstance(out, tuple) else out.loss
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()], out


def same(found, want, tolerance=1e-5):
    torch.testing.assert_close(found[0], want[0], rtol=tolerance, atol=tolerance)
    for a, c in zip(found[1], want[1], strict=True):
        torch.testing.assert_close(a, c, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [Model, Capped, Scaled, Strange])
def test_the_same_loss_and_gradients(kind):
    """29: caps and scales take part."""
    model, data = kind(bias=True), batch()
    want = results(model, *data)
    with ot.patch(model):
        found = results(model, *data)
        same(found, want)
        logits = found[2][1]
        assert isinstance(logits, torch.Tensor) == (kind is Strange)
        torch.testing.assert_close(logits + 0, want[2][1])
    assert type(model) is kind and type(model.lm_head) is torch.nn.Linear
    same(results(model, *data), want)


def test_nothing_is_deferred_without_labels_training_or_gradients():
    model, (tokens, labels) = Model(), batch()
    ot.patch(model)
    assert isinstance(model(tokens, labels)[1], DeferredLogits)
    assert isinstance(model(tokens, labels=labels)[1], DeferredLogits)
    assert isinstance(model(tokens)[1], torch.Tensor)
    assert isinstance(model.lm_head(torch.zeros(8)), torch.Tensor)
    with torch.no_grad():
        assert isinstance(model(tokens, labels)[1], torch.Tensor)
    assert isinstance(model.eval()(tokens, labels)[1], torch.Tensor)


def test_copies_and_pickles_stay_patched():
    model, data = Model(), batch()
    want = results(model, *data)
    ot.patch(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other is not model and other.lm_head is not model.lm_head
        same(results(other, *data), want)
        assert isinstance(other(*data)[1], DeferredLogits)
        ot.unpatch(other)
        assert type(other) is Model
    assert list(inspect.signature(model.forward).parameters) == ["tokens", "labels"]
    assert isinstance(model, Model) and type(model).__name__ == "Model"


def test_a_wrapped_model():
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **options):
            return self.module(*args, **options)

    wrapper, data = Wrapper(Model()), batch()
    want = results(wrapper, *data)
    ot.patch(wrapper)
    same(results(wrapper, *data), want)
    assert isinstance(wrapper(*data)[1], DeferredLogits)
    ot.unpatch(wrapper)
    assert type(wrapper.module) is Model


def test_autocast():
    model, data = Model(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        want = results(model, *data)
        ot.patch(model)
        found = results(model, *data)
    same(found, want, 2e-2)
    assert found[2][1].tensor().dtype == torch.bfloat16


def test_compiles_whole():
    model, data = Capped(), batch()
    want = results(model, *data)
    ot.patch(model)
    same(results(torch.compile(model, fullgraph=True, backend="aot_eager"), *data), want)


def test_frozen_head_and_frozen_body():
    """36."""
    for frozen in ("embed", "lm_head"):
        model, data = Model(), batch()
        want = results(model, *data)[1]
        getattr(model, frozen).requires_grad_(False)
        ot.patch(model)
        model.zero_grad()
        model(*data)[0].backward()
        grads = [p.grad for p in model.parameters()]
        assert (grads[0] is None) == (frozen == "embed") and (grads[1] is None) == (frozen == "lm_head")
        torch.testing.assert_close(grads[frozen == "embed"], want[frozen == "embed"])


def test_34_sharded_heads_are_not_deferred():
    """DeepSpeed's parameters are only whole inside their module's forward; they carry its id."""
    model, data = Model(), batch()
    want = results(model, *data)
    model.lm_head.weight.ds_id = 0
    ot.patch(model)
    found = results(model, *data)
    same(found, want)
    assert isinstance(found[2][1], torch.Tensor)


def test_models_that_can_not_be_patched():
    with pytest.raises(ValueError, match="neither"):
        ot.patch(torch.nn.Linear(3, 3))
    model = Model()
    ot.patch(model)
    with pytest.raises(TypeError, match="already"):
        ot.patch(model)
    ot.unpatch(model)
    with pytest.raises(ValueError, match="not patched"):
        ot.unpatch(model)
    model.lm_head = torch.nn.Sequential(torch.nn.Linear(8, CLASSES))
    with pytest.raises(TypeError, match="Sequential"):
        ot.patch(model)
    with pytest.raises(ValueError, match="no part"):
        ot.patch(model, torch.nn.Linear(8, CLASSES))
    model = Model()
    model.forward = model.forward
    with pytest.raises(ValueError, match="on the object"):
        ot.patch(model)

    class Unlabelled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lm_head = torch.nn.Linear(2, 2)

        def forward(self, tokens):
            return self.lm_head(tokens)

    with pytest.raises(ValueError, match="takes no labels"):
        ot.patch(Unlabelled())


def deferred():
    hidden = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    return DeferredLogits(hidden, weight, None, torch.float32, torch.float32)


@pytest.mark.parametrize(
    "apply",
    [
        lambda z: z * 2, lambda z: 2 * z, lambda z: z / 3, lambda z: torch.tanh(z / 2) * 2, lambda z: z.tanh() / 4,
        lambda z: torch.mul(z, 2.0), lambda z: torch.div(z, 2.0), lambda z: z.float(), lambda z: z.to(torch.bfloat16),
        lambda z: z.view(-1, 5), lambda z: z.reshape(3, 2, 5), lambda z: z.view((6, 5)), lambda z: z[:, :-1],
        lambda z: z[..., 1:, :], lambda z: z[0:1, :, :], lambda z: z.contiguous(), lambda z: z.detach(),
        lambda z: torch.reshape(z, (-1, 5)), lambda z: z.to(torch.device("cpu")),
    ],
)  # fmt: skip
def test_written_down(apply):
    z = deferred()
    found = apply(z)
    want = apply(z.tensor())
    assert isinstance(found, DeferredLogits)
    assert (found.shape, found.dtype, found.ndim) == (want.shape, want.dtype, want.ndim)
    assert (found.requires_grad, found.numel(), len(found)) == (want.requires_grad, want.numel(), len(want))
    torch.testing.assert_close(found.tensor(), want)


@pytest.mark.parametrize(
    "apply",
    [
        lambda z: z * -2, lambda z: z * torch.tensor(2.0), lambda z: z + 1, lambda z: 1 - z, lambda z: z - z,
        lambda z: -z, lambda z: z > 0, lambda z: z**2, lambda z: torch.tanh(torch.tanh(z)), lambda z: z.softmax(-1),
        lambda z: torch.log_softmax(z, -1), lambda z: z[0], lambda z: z[..., 2], lambda z: z[:, :, :3],
        lambda z: z.view(-1), lambda z: z.argmax(-1), lambda z: torch.cat([z, z]), lambda z: z.double(),
        lambda z: z.to(torch.float64), lambda z: next(iter(z)), lambda z: z.transpose(0, 1), lambda z: z @ z.mT,
        lambda z: 2 / z, lambda z: z[z > 0], lambda z: torch.stack(list(z)), lambda z: z.masked_fill(z < 0, 0),
    ],
)  # fmt: skip
def test_made_where_it_can_not_be_written_down(apply):
    z = deferred()
    found, want = apply(z), apply(z.tensor())
    assert isinstance(found, torch.Tensor) and found.dtype == want.dtype
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum", "label_smoothing": 0.1}, {"reduction": "none"}], ids=str)
def test_cross_entropy_of_deferred_logits(options):
    t = torch.tensor([0, 4, -100, 1, 2, 3])
    found, want = F.cross_entropy(deferred().view(-1, 5), t, **options), F.cross_entropy(
        deferred().tensor().view(-1, 5), t, **options
    )  # fmt: skip
    assert "linear_cross_entropy" in str(found.grad_fn) or options
    torch.testing.assert_close(found, want)
    assert F.cross_entropy(deferred().view(-1, 5), torch.full((6,), -100)).isnan()
    moved, zeros = deferred().transpose(1, 2), torch.zeros(2, 3, dtype=torch.int64)  # classes in the second dimension
    torch.testing.assert_close(F.cross_entropy(moved, zeros), F.cross_entropy(moved + 0, zeros))


# --- transformers' models ----------------------------------------------------------------------------------

SMALL = {
    **{"vocab_size": CLASSES, "hidden_size": 16, "intermediate_size": 32, "pad_token_id": 0},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
MODELS = {
    "Llama": {},
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 3.0},
    "Cohere": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 4.0},
}


def transformer(name, layers=2):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, **MODELS[name], num_hidden_layers=layers)
    model = getattr(transformers, f"{name}ForCausalLM")(config).train()
    torch.nn.init.normal_(model.get_output_embeddings().weight, 0, 0.5)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_transformers(name):
    """27, 29: scales, caps, num_items_in_batch and shifted labels as the model has them."""
    model = transformer(name)
    tokens, labels = batch()
    calls = [
        {"labels": labels}, {"labels": labels, "num_items_in_batch": torch.tensor(5)},
        {"labels": labels, "num_items_in_batch": 5}, {"labels": labels, "shift_labels": labels.roll(-2, 1)},
    ]  # fmt: skip
    want = [results(model, input_ids=tokens, **call) for call in calls]
    with ot.patch(model):
        for call, values in zip(calls, want):
            found = results(model, input_ids=tokens, **call)
            same(found, values)
            assert isinstance(found[2].logits, DeferredLogits)
        with torch.no_grad():  # the plain loss, of real logits
            model.eval()
            out = model(input_ids=tokens, labels=labels)
            assert isinstance(out.logits, torch.Tensor)
            torch.testing.assert_close(out.loss, want[0][0])
            assert model.generate(tokens, max_new_tokens=2, do_sample=False).shape == (2, 9)
            model.train()
        assert model(input_ids=tokens, labels=torch.full_like(labels, -100)).loss == 0
    same(results(model, input_ids=tokens, labels=labels), want[0])


def test_transformers_sizes_that_do_not_fit():
    model = transformer("Llama")
    tokens, labels = batch()
    model.config.vocab_size = CLASSES + 1
    ot.patch(model)
    with pytest.raises(ValueError, match="31 classes"):
        model(input_ids=tokens, labels=labels)


def test_transformers_save_and_load(tmp_path):
    model = transformer("Llama")
    ot.patch(model)
    model.save_pretrained(tmp_path)
    other = type(model).__mro__[2].from_pretrained(tmp_path)
    assert type(other).__name__ == "LlamaForCausalLM" and not hasattr(other, "onelaunch_head")
    for a, c in zip(model.parameters(), other.parameters()):
        assert torch.equal(a, c)


def test_27_a_transformer_learns_the_same():
    """50 steps of two accumulated batches of unequal numbers of labels, with and without patch: the same losses."""
    losses = []
    for patched in (False, True):
        model = transformer("Llama", layers=1)
        if patched:
            ot.patch(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        found = []
        for step in range(50):
            tokens = (torch.arange(8) * (step % 5 + 1) + torch.arange(2)[:, None]) % CLASSES
            labels = tokens.clone()
            labels[0, : step % 4] = -100
            items = (labels[:, 1:] != -100).sum()
            total = 0.0
            for i in range(2):
                loss = model(input_ids=tokens[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=items).loss
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            found.append(total)
        losses.append(found)
    assert losses[0][-1] < losses[0][0] / 2
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
