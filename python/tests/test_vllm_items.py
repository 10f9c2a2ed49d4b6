"""Images in aquifer.vllm: each is named by what the engine was given for it, whatever its identifier says. With vLLM's
own requests and a real node; no engine is started (test_vllm_images.py has one)."""
import threading
import types

import pytest

pytest.importorskip("vllm")
import torch  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config.multimodal import MultiModalConfig  # noqa: E402
from vllm.multimodal.inputs import (MultiModalBatchedField, MultiModalFeatureSpec, MultiModalFieldElem,  # noqa: E402
                                    MultiModalKwargsItem, PlaceholderRange)
from vllm.v1.core.sched.output import NewRequestData  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

import aquifer  # noqa: E402
from aquifer.vllm import items, scheduler  # noqa: E402
from aquifer.vllm.items import Items, may_be_named  # noqa: E402
from test_vllm_sides import BLOCK, FIRST, SECOND, fill, go_on, hand, named, text  # noqa: E402, F401

PAD = 999
LENGTH = 40  # Tokens of an image: it touches two blocks, or three.


def pixels(seed, **changes):
    fields = {"pixel_values": torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(seed)),
              "image_grid_thw": torch.tensor([1, 2, 4]), **changes}
    return MultiModalKwargsItem({name: MultiModalFieldElem(data, MultiModalBatchedField())
                                 for name, data in fields.items()})


def feature(data, offset, identifier, length=LENGTH, is_embed=None, modality="image"):
    return MultiModalFeatureSpec(data=data, modality=modality, identifier=identifier, mm_hash=identifier,
                                 mm_position=PlaceholderRange(offset, length, is_embed))


def request_with(name, *features, blocks=4, seed=1, **changes):
    """A text with the features' placeholders in it."""
    tokens = text(blocks, seed)
    for given in features:
        position = given.mm_position
        tokens[position.offset:position.offset + position.length] = [PAD] * position.length
    return Request(name, tokens, SamplingParams(max_tokens=8), None, mm_features=list(features), **changes)


def recalled(hand, *features, name="asks", **changes):
    """How much of such a request is there."""
    request = request_with(name, *features, **changes)
    tokens = hand.begin_load(request, SECOND)
    if tokens:
        assert hand.until(name) is False
    hand.scheduler.finished(request, [])
    hand.step()
    return tokens


def stored(hand, *features, name="stores", **changes):
    """Whether anything was, when all of it was computed; and how many blocks."""
    fill(hand, FIRST)
    before = hand.counts()
    assert not before.get("stored_blocks")
    hand.compute_and_end(request_with(name, *features, **changes), FIRST)
    return hand.counts().get("stored_blocks", 0)


# ---- Names ----

def name_of(data, **changes):
    return items._Hasher().name_of(feature(data, **{"offset": 0, "identifier": "x", **changes}))


def test_a_name_is_of_everything_that_the_engine_was_given():
    grid = torch.tensor([1, 4, 2])
    half = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1)).half()
    bits = pixels(1)["pixel_values"].data.view(torch.int32)
    others = [pixels(2), pixels(1, image_grid_thw=grid), pixels(1, more=torch.zeros(1)), pixels(1, pixel_values=half),
              pixels(1, pixel_values=bits), pixels(1, pixel_values=pixels(1)["pixel_values"].data.reshape(3, 64)),
              pixels(1, pixel_values=[pixels(1)["pixel_values"].data]), pixels(1, image_grid_thw=(1, 2, 4)),
              pixels(1, image_grid_thw=[1, 2, 4]), pixels(1, image_grid_thw="1, 2, 4"), pixels(1, image_grid_thw=1.0)]
    names = [name_of(data) for data in others]
    names += [name_of(pixels(1), modality="video"), name_of(pixels(1), length=LENGTH + 1),
              name_of(pixels(1), is_embed=torch.ones(LENGTH, dtype=torch.bool)),
              name_of(pixels(1), is_embed=torch.arange(LENGTH) < LENGTH - 1)]
    first = name_of(pixels(1))
    assert len({first, *names}) == 1 + len(names)
    assert first == name_of(pixels(1), offset=17, identifier="y")
    strided = torch.empty(8, 8, 3).permute(2, 0, 1).copy_(pixels(1)["pixel_values"].data)
    assert not strided.is_contiguous() and first == name_of(pixels(1, pixel_values=strided))


def test_what_has_been_hashed_is_remembered_for_as_long_as_it_is_there(monkeypatch):
    hasher, added = items._Hasher(), []
    add = items._add
    monkeypatch.setattr(items, "_add", lambda digest, value: added.append(value) or add(digest, value))
    data = pixels(1)
    first = hasher.name_of(feature(data, 0, "x"))
    once = len(added)
    assert hasher.name_of(feature(data, 5, "y")) == first and len(added) == once + 3
    assert hasher.name_of(feature(pixels(2), 0, "x")) != first
    assert len(hasher._known) == 1
    del data
    assert not hasher._known


def test_fields_that_run_into_each_other_are_not_one():
    one = MultiModalKwargsItem({"a": MultiModalFieldElem(["b", "c"], MultiModalBatchedField())})
    other = MultiModalKwargsItem({"a": MultiModalFieldElem(["b"], MultiModalBatchedField()),
                                  "c": MultiModalFieldElem([], MultiModalBatchedField())})
    assert name_of(one) != name_of(other)


# ---- Requests ----

def test_a_request_recalls_its_image_and_nobody_elses(hand):
    assert stored(hand, feature(pixels(1), 10, "one")) == 4
    assert recalled(hand, feature(pixels(1), 10, "another name")) == 4 * BLOCK
    assert recalled(hand, feature(pixels(2), 10, "one")) == 0
    assert recalled(hand) == 0
    assert recalled(hand, feature(pixels(2), 70, "two")) == 0  # Its placeholders are in the text before.


def test_blocks_in_front_of_an_image_are_everybodys(hand):
    assert stored(hand, feature(pixels(1), 2 * BLOCK + 5, "one")) == 4
    assert recalled(hand, feature(pixels(2), 2 * BLOCK + 5, "two")) == 2 * BLOCK
    assert recalled(hand, feature(pixels(1), 2 * BLOCK + 5, "one")) == 4 * BLOCK


def test_an_image_that_begins_elsewhere_among_placeholders_is_another(hand):
    """The tokens are the same."""
    around = [feature(pixels(1), offset, "one", length=BLOCK) for offset in (0, 8)]
    requests = [request_with(f"at {given.mm_position.offset}", given) for given in around]
    for request in requests:
        request.prompt_token_ids[:BLOCK + 8] = [PAD] * (BLOCK + 8)
        request._all_token_ids[:BLOCK + 8] = [PAD] * (BLOCK + 8)
    fill(hand, FIRST)
    assert hand.compute_and_end(requests[0], FIRST)
    assert hand.scheduler.matched_tokens(requests[1], 0) == 0


def test_two_images_in_another_order_are_others(hand):
    def two(first, second):
        return [feature(pixels(first), 3, f"{first}", length=10), feature(pixels(second), 15, f"{second}", length=10)]
    assert stored(hand, *two(1, 2)) == 4
    assert recalled(hand, *two(2, 1)) == 0
    assert recalled(hand, *two(1, 1)) == 0
    assert recalled(hand, *two(1, 2)) == 4 * BLOCK


def test_a_second_turn_with_one_more_image_recalls_the_first(hand):
    first = feature(pixels(1), 10, "one")
    assert stored(hand, first) == 4
    more = feature(pixels(2), 4 * BLOCK + 3, "two")
    request = request_with("turn", first, more, blocks=7)
    request._all_token_ids[:4 * BLOCK] = request_with("again", first)._all_token_ids[:4 * BLOCK]
    assert hand.begin_load(request, SECOND) == 4 * BLOCK
    assert hand.until("turn") is False


def test_what_a_request_with_an_image_answers_is_stored(hand):
    request = request_with("answers", feature(pixels(1), 10, "one"), blocks=1)
    hand.scheduler.on_new_request(request)
    assert hand.scheduler.matched_tokens(request, 0) == 0
    request.append_output_token_ids(list(range(2 * BLOCK)))
    request.num_computed_tokens = request.num_tokens
    assert hand.scheduler.finished(request, FIRST)
    hand.until("answers")
    assert hand.counts()["stored_blocks"] == 3


# ---- Identifiers that lie ----

def test_what_was_computed_for_an_identifier_of_two_images_is_not_stored(hand):
    """vLLM takes the second for the first: the encoder's output, and pages of its prefix cache."""
    assert stored(hand, feature(pixels(1), BLOCK + 5, "x")) == 4
    assert stored(hand, feature(pixels(2), BLOCK + 5, "x"), name="lies") == 0  # But for what is there.
    assert recalled(hand, feature(pixels(2), BLOCK + 5, "honest")) == BLOCK
    assert recalled(hand, feature(pixels(1), BLOCK + 5, "x")) == 4 * BLOCK  # That was computed for the first.
    assert stored(hand, feature(pixels(1), BLOCK + 5, "x"), seed=2, name="later") == 1
    assert stored(hand, feature(pixels(2), BLOCK + 5, "honest"), seed=2, name="other") == 3


def test_an_identifier_that_lies_while_a_request_runs_ends_its_stores(hand):
    request = request_with("runs", feature(pixels(1), BLOCK + 5, "x"))
    hand.scheduler.on_new_request(request)
    hand.scheduler.matched_tokens(request, 0)
    request.num_computed_tokens = 2 * BLOCK
    hand.step([(request, FIRST)])
    assert recalled(hand, feature(pixels(2), 10, "x")) == 0
    request.num_computed_tokens = 4 * BLOCK
    hand.step([(request, FIRST)])
    assert hand.scheduler._tracked["runs"].submitted == 2


@pytest.mark.parametrize("given", [
    feature(None, BLOCK + 5, "x"), feature(pixels(1, address=torch.zeros(1)), BLOCK + 5, "x"),
    feature(pixels(1, pixel_values=None), BLOCK + 5, "x"), feature(pixels(1, pixel_values={}), BLOCK + 5, "x"),
    feature(pixels(1, pixel_values=torch.zeros(2, 2).to_sparse()), BLOCK + 5, "x"),
    feature(pixels(1, pixel_values=torch.zeros(2, device="meta")), BLOCK + 5, "x"),
    feature(pixels(1), BLOCK + 5, "x", modality="prompt_embeds")])
def test_an_item_that_nobody_sees_is_left_alone_and_so_is_its_identifier(hand, given):
    """What is in front of it is not."""
    assert stored(hand, given) == 1
    assert recalled(hand, given) == BLOCK
    assert stored(hand, feature(pixels(1), BLOCK + 5, "x"), name="seen") == 0
    assert stored(hand, feature(pixels(1), BLOCK + 5, "y"), name="honest") == 3


def test_items_in_disorder_are_left_alone(hand):
    assert stored(hand, feature(pixels(1), BLOCK, "x"), feature(pixels(2), 2 * BLOCK, "y")) == 2
    backwards = feature(None, 3 * BLOCK, "a", length=4), feature(pixels(2), BLOCK + 1, "b", length=4)
    assert stored(hand, *backwards, name="backwards", seed=2) == 1
    stats = hand.scheduler.take_stats()
    assert stats is None or stats.data == {"node_up": 1}  # No call failed.


@pytest.mark.parametrize("changes", [{"resumable": True}, {"pooling_params": 1}])
def test_the_identifiers_of_requests_that_are_left_alone_are_not_believed(hand, changes):
    """A session whose input is streamed in gets images when nobody looks; they come to the workers in a step."""
    given = feature(pixels(1), BLOCK + 5, "x")
    other = request_with("other", given)
    for name, value in changes.items():
        setattr(other, name, value)
    hand.scheduler.on_new_request(other)
    begin(hand, other)
    assert stored(hand, given) == 1


def test_an_engine_that_has_seen_too_many_at_once_leaves_the_rest_alone(hand, monkeypatch):
    monkeypatch.setattr(items, "_MOST_WAITING", 0)
    assert stored(hand, feature(pixels(1), BLOCK + 5, "x")) == 1


def test_identifiers_that_share_a_place_are_believed_once(hand, monkeypatch):
    monkeypatch.setattr(items, "_SLOTS", 1)
    assert stored(hand, feature(pixels(1), BLOCK + 5, "x")) == 4
    assert stored(hand, feature(pixels(2), BLOCK + 5, "y"), name="second") == 0
    assert stored(hand, feature(pixels(1), BLOCK + 5, "x"), name="first again", seed=2) == 4


def test_an_adapter_of_the_encoder_is_part_of_what_an_identifier_stands_for():
    seen, given = Items(), feature(pixels(1), 0, "adapter:x")
    given.mm_hash = "x"
    for adapter, trusted in ((b"one", LENGTH), (b"one", LENGTH), (b"two", 0)):
        (item,) = seen.of(types.SimpleNamespace(mm_features=[given]), adapter)
        aquifer.cache.wait_for(lambda: item.is_settled, 30)
        assert seen.trusted_tokens((item,), LENGTH) == trusted
    seen.close()


# ---- The scheduler's thread ----

def begin(hand, request, computed=0):
    """As vLLM tells in the request's first step."""
    request.num_computed_tokens = computed
    new = NewRequestData.from_request(request, ([],))
    output = types.SimpleNamespace(
        preempted_req_ids=set(), num_scheduled_tokens={}, kv_connector_block_state=None, scheduled_new_reqs=[new],
        scheduled_encoder_inputs={}, scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]))
    hand.scheduler.build_meta(output)
    return new


@pytest.fixture
def slow(monkeypatch):
    """Hashing takes as long as the test wants."""
    goes_on, name_of = threading.Event(), items._Hasher.name_of
    monkeypatch.setattr(items._Hasher, "name_of", lambda self, given: goes_on.wait(60) and name_of(self, given))
    yield goes_on
    goes_on.set()


def looked(hand, request):
    return scheduler.SchedulerSide.matched_tokens(hand.scheduler, request, 0)


def test_nobody_waits_while_an_image_is_hashed(hand, slow, monkeypatch):
    monkeypatch.setattr(scheduler, "_NAMING_SECONDS", 600.0)
    cache, asked = hand.scheduler._link.reached().cache, []
    match = cache.begin_match
    monkeypatch.setattr(cache, "begin_match", lambda *args: asked.append(args) or match(*args))
    request = request_with("asks", feature(pixels(1), 10, "x"))
    hand.scheduler.on_new_request(request)
    assert [looked(hand, request) for _ in range(3)] == [None] * 3 and not asked
    slow.set()
    assert hand.scheduler.matched_tokens(request, 0) == 0
    assert len(asked) == 1


def test_what_is_computed_before_it_has_a_name_is_not_stored_nor_is_another_under_its_identifier(hand, slow, monkeypatch):
    monkeypatch.setattr(scheduler, "_NAMING_SECONDS", 0.0)
    request = request_with("goes on", feature(pixels(1), BLOCK + 5, "x"))
    hand.scheduler.on_new_request(request)
    assert hand.scheduler.matched_tokens(request, 0) == 0
    begin(hand, request, computed=0)
    request.num_computed_tokens = 4 * BLOCK
    hand.step([(request, FIRST)])
    assert hand.scheduler._tracked["goes on"].submitted == 1
    slow.set()
    aquifer.cache.wait_for(lambda: hand.scheduler._tracked["goes on"].items[0].is_settled, 30)
    hand.step([(request, FIRST)])
    assert hand.scheduler._tracked["goes on"].submitted == 1
    hand.scheduler.finished(request, [])

    def is_stored():
        hand.step()
        return hand.counts().get("stored_blocks") == 1
    aquifer.cache.wait_for(is_stored, 30)
    monkeypatch.undo()
    assert stored(hand, feature(pixels(2), BLOCK + 5, "x"), name="another") == 0
    assert stored(hand, feature(pixels(1), BLOCK + 5, "y"), name="honest") == 3


def size_alone(seed):
    """As where the encoder is in another place."""
    fields = MultiModalBatchedField(keep_on_cpu=True)
    return MultiModalKwargsItem({"image_grid_thw": MultiModalFieldElem(torch.tensor([1, 2, 4]), fields)})


def test_an_item_is_not_named_by_its_size(hand):
    assert stored(hand, feature(size_alone(1), BLOCK + 5, "cat")) == 1
    assert recalled(hand, feature(size_alone(2), BLOCK + 5, "dog")) == BLOCK


def test_an_item_of_no_tokens_has_no_name(hand):
    assert stored(hand, feature(pixels(1), BLOCK, "x", length=0)) == 1


@pytest.mark.parametrize("setting", [
    {"ec_transfer_config": object()},
    {"model_config": types.SimpleNamespace(multimodal_config=types.SimpleNamespace(video_pruning_rate=0.5))},
    {"model_config": types.SimpleNamespace(multimodal_config=MultiModalConfig(mm_encoder_attn_dtype="fp8"))}])
def test_where_results_do_not_follow_from_items_nothing_has_a_name(setting):
    assert not may_be_named(types.SimpleNamespace(**setting))
    (item,) = Items(may_name=False).of(types.SimpleNamespace(mm_features=[feature(pixels(1), 0, "x")]), None)
    assert item.is_settled and item.name is None
    assert may_be_named(types.SimpleNamespace(model_config=types.SimpleNamespace(multimodal_config=MultiModalConfig())))


def test_a_worker_gets_images_that_are_recalled(hand):
    """It would need them if the request is preempted and nothing can be recalled then; but for vLLM's V2 runner, which
    is told of a request anew when it goes on."""
    given = feature(pixels(1), 10, "x")
    assert stored(hand, given) == 4
    for again, sent in ((False, True), (True, False)):
        hand.scheduler._sends_again = again
        request = request_with(f"loads {again}", given)
        assert hand.begin_load(request, SECOND) == 4 * BLOCK
        assert hand.until(request.request_id) is False
        (whole,) = begin(hand, request, computed=4 * BLOCK).mm_features
        assert (whole.data is not None) is sent
    found = request_with("has it itself", given)
    hand.scheduler.on_new_request(found)
    assert begin(hand, found, computed=4 * BLOCK).mm_features[0].data is None


def test_a_step_that_encodes_images_is_not_timed():
    new = types.SimpleNamespace(req_id="a", num_computed_tokens=0)
    output = types.SimpleNamespace(
        num_scheduled_tokens={"a": 100}, scheduled_new_reqs=[new], scheduled_encoder_inputs={},
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]))
    assert scheduler._prefill_of(output) is not None
    output.scheduled_encoder_inputs = {"a": [0]}
    assert scheduler._prefill_of(output) is None
