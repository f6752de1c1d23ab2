"""What the model is shown of its memory, while the record keeps everything."""

from __future__ import annotations

import logging
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scripted import Counting, Scripted, answer, calling_agent, calls, code, code_agent
from smolagents import CodeAgent
from smolagents.models import ChatMessage, MessageRole

from smolmem import Memory
from smolmem.core.errors import InvalidArgument
from smolmem.core.tokens import Tokens, size
from smolmem.policies import views


def texts(messages: list[Any]) -> str:
    return "\n".join(item.get("text", "<picture>") for message in messages for item in message.content)


def shoot(step: Any, agent: Any) -> None:
    """The documented screenshot callback, without its pruning."""
    if step.step_number % 2 == 0:
        step.observations_images = [Image.new("L", (1024, 768), step.step_number % 255)]


def walker(steps: int, *, read: str = "lorem ipsum dolor " * 12, **options: Any) -> CodeAgent:
    """An agent that reads so many pages and then answers."""
    script = [code(f"print('page {n} says: {read}')") for n in range(1, steps)]
    model = Counting(*script, code("final_answer('done')"))
    return CodeAgent(tools=[], model=model, verbosity_level=0, max_steps=steps, **options)


@pytest.mark.long
def test_two_hundred_steps_with_screenshots_stay_in_their_budget_and_nothing_is_lost(path: Path) -> None:
    plain = walker(200, step_callbacks=[shoot])
    plain.run("Read all pages")
    with Memory(path, strict=True, embedder="off") as memory:
        agent = walker(200, step_callbacks=[shoot])
        memory.attach(agent, views=[views.KeepImages(last=2), views.TokenBudget(8_000)])
        agent.run("Read all pages")
        prompts = agent.model.prompts
        costs = [Counting.cost(prompt) for prompt in prompts]
        assert max(costs) <= 8_000
        assert sum(costs) <= 0.15 * sum(Counting.cost(prompt) for prompt in plain.model.prompts)
        cuts = memory._journal.trims.of(memory.runs()[0].session)
        assert 1 < len(cuts) <= 20  # so all other prompts begin as the one before, up to the oldest image it showed
        kept = 0
        for before, after in pairwise(prompts):
            pictured = next(
                (i for i, message in enumerate(before) if message.content[0]["type"] == "image"), len(before)
            )
            same = next(
                (i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before)
            )
            kept += same >= pictured
        assert kept >= 0.9 * (len(prompts) - 1)
        steps = memory.steps(kind="action", limit=300)
        assert len(steps) == 200
        assert sum(bool(step.to_smolagents().observations_images) for step in steps) == 100
        memory.index()
        assert "page 7 says" in memory.recall("page 7 says", 1)[0].text
        sent = {step.number: step.to_smolagents().model_input_messages for step in steps if step.number in (3, 60, 199)}
        assert all(list(messages) == prompts[number - 1] for number, messages in sent.items())


def test_keep_images_shows_the_newest_and_those_of_the_task(memory: Memory) -> None:
    agent = memory.attach(walker(7, step_callbacks=[shoot]), views=[views.KeepImages(last=1)])
    agent.run("Look", images=[Image.new("RGB", (9, 9))])
    shown = agent.model.prompts[-1]
    pictures = [item["image"].size for message in shown for item in message.content if item["type"] == "image"]
    assert pictures[0] == (9, 9)  # the task's
    assert pictures.count((1024, 768)) == 1


def test_slack_lets_images_gather_so_that_prompts_begin_as_the_one_before(memory: Memory) -> None:
    agent = memory.attach(walker(41, step_callbacks=[shoot]), views=[views.KeepImages(last=1, slack=3)])
    agent.run("Look")
    pictures = [texts(prompt).count("<picture>") for prompt in agent.model.prompts]
    assert pictures[:17] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 1, 1, 2, 2, 3, 3, 4]
    begun = [texts(after).startswith(texts(before)) for before, after in pairwise(agent.model.prompts)]
    assert begun.count(False) == len(memory._journal.trims.of(memory.runs()[0].session)) == 4


def test_trimmed_observations_keep_head_and_tail_and_point_at_the_whole(memory: Memory) -> None:
    agent = code_agent(code("print('head' + 'x' * 9000 + 'needle' + 'y' * 9000 + 'tail')"), code("final_answer(1)"))
    memory.attach(agent, views=[views.TrimObservations(chars=300)], tools=True)
    agent.run("Read")
    shown = agent.model.prompts[1][-1].content[0]["text"]
    assert "head" in shown
    assert "tail" in shown
    assert len(shown) < 500
    (number,) = [step.id for step in memory.steps(kind="action") if step.number == 1]
    assert f"recall_memory('step {number}')" in shown
    again = agent.tools["recall_memory"](query=f"step {number}: needle")
    assert "needle" in again
    assert len(again) < 4_000
    assert memory.step(number).to_smolagents().observations.count("x") >= 9_000


def test_the_newest_observations_can_be_left_whole(memory: Memory) -> None:
    agent = walker(4, read="z" * 900)
    memory.attach(agent, views=[views.TrimObservations(200, keep_last=1)])
    agent.run("Read")
    shown = [m for m in agent.model.prompts[-1] if m.role == MessageRole.TOOL_RESPONSE]
    assert ["not shown" in texts([message]) for message in shown] == [True, True, False]


def test_timestamps_stand_before_observations_and_not_in_the_record(memory: Memory) -> None:
    agent = memory.attach(walker(3), views=[views.Timestamps("%Y")])
    agent.run("Read")
    assert f"[{time.localtime().tm_year}] Observation:" in texts(agent.model.prompts[-1])
    assert not agent.memory.steps[1].observations.startswith("[")


def test_errors_are_dropped_once_enough_has_followed(memory: Memory) -> None:
    agent = code_agent(code("1/0"), *[code("print('fine')")] * 3, code("final_answer(1)"))
    memory.attach(agent, views=[views.DropErrors(after=2)])
    agent.run("Try")
    assert ["ZeroDivision" in texts(prompt) or "zero" in texts(prompt) for prompt in agent.model.prompts] == [
        *(False, True, True),
        *(False, False),
    ]
    assert memory.steps(error=True)


def test_secrets_are_redacted_everywhere_in_the_prompt(memory: Memory) -> None:
    agent = calling_agent(calls(("weather", {"city": "key-123456"})), answer("ok"), instructions="Use key-999999.")
    memory.attach(agent, views=[views.Redact(r"key-\d+")])
    agent.run("My key is key-777777")
    assert "key-" not in texts(agent.model.prompts[-1]).replace("key-\\d", "")
    assert "[redacted]" in texts(agent.model.prompts[-1])
    assert "key-777777" in memory.runs()[0].task


def test_a_pattern_that_takes_forever_is_stopped_and_its_text_not_shown(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    agent = code_agent(code("print('a' * 3000 + '!')"), code("final_answer(1)"))
    memory.attach(agent, views=[views.Redact(r"(a|aa)+$")])
    with caplog.at_level(logging.WARNING, "smolmem"):
        began = time.process_time()
        agent.run("Go")
    assert time.process_time() - began < 20
    assert "takes too long" in caplog.text
    assert "aaaaaaaaaa" not in texts(agent.model.prompts[-1])


def test_an_invalid_pattern_is_refused_at_once() -> None:
    with pytest.raises(InvalidArgument, match="not a regular expression"):
        views.Redact("(")


def test_a_summary_takes_the_place_of_old_steps_in_large_bites(memory: Memory) -> None:
    agent = memory.attach(walker(15), views=[views.Summarize(keep_last=3)])
    agent.run("Read")
    shown = [texts(prompt) for prompt in agent.model.prompts]
    assert ["[Summary of" in text for text in shown] == [False] * 6 + [True] * 9
    last = shown[-1]
    assert "[Summary of 9 earlier steps, quoted" in last
    assert "❘ 2. python_interpreter(\"print('page 2 says" in last
    assert "page 14 says" in last
    heads = [text[: text.index("[Summary of")] for text in shown[6:]]
    assert len(set(heads)) == 1
    summaries = {text[text.index("[Summary of") :].split("\n")[0] for text in shown[6:]}
    assert len(summaries) == 3  # each stays for several prompts


def test_a_model_writes_the_summary_once_per_bite_and_its_failure_is_no_failure(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Scripted("It read the pages up to 3.", RuntimeError("busy"))
    agent = memory.attach(walker(10), views=[views.Summarize(writer, keep_last=3)])
    with caplog.at_level(logging.WARNING, "smolmem"):
        agent.run("Read")
    assert len(writer.prompts) == 2
    assert "page 2 says" in texts(writer.prompts[0])
    assert "It read the pages up to 3." in texts(writer.prompts[1])
    assert "It read the pages up to 3." in texts(agent.model.prompts[7])
    assert "wrote no summary (busy)" in caplog.text
    assert len(memory._journal.calls(memory.runs()[0].id)) == len(
        [call for call in memory._journal.calls(memory.runs()[0].id) if call.kind == "tool"]
    ) + len(agent.model.prompts)  # the writer's answers are not the agent's


def test_a_budget_holds_whatever_the_newest_step_brings(memory: Memory) -> None:
    agent = walker(6, read="word " * 12_000)
    memory.attach(agent, views=[views.TokenBudget(5_000)])
    agent.run("Read")
    assert max(Counting.cost(prompt) for prompt in agent.model.prompts) <= 5_000
    assert "Read" in texts(agent.model.prompts[-1])


def test_a_budget_smaller_than_the_prompt_alone_says_the_minimum(memory: Memory) -> None:
    agent = walker(2)
    with pytest.raises(
        InvalidArgument, match=r"system prompt and the task alone take about 2,\d+ tokens. Set at least"
    ):
        memory.attach(agent, views=[views.TokenBudget(100)])
    assert agent.run("Go on without it") == "done"
    memory.attach(agent, views=[views.TokenBudget(4_000)])
    agent.model.script = iter([code("final_answer(1)")])
    with pytest.raises(InvalidArgument, match="at least"):
        agent.run("A very long task. " * 2_000)


def test_a_budget_counts_as_the_model_does() -> None:
    tokens, usual = Tokens(), Tokens()
    text = [ChatMessage(MessageRole.USER, [{"type": "text", "text": "x" * 20_000}])]
    picture = [ChatMessage(MessageRole.USER, [{"type": "image", "image": Image.new("RGB", (800, 600))}])]
    for prompt in (text, text + picture, text + picture * 2):
        tokens.learn(size(prompt), Counting.cost(prompt))
    wanted = Counting.cost(text + picture * 3)
    assert abs(tokens.count(size(text + picture * 3)) - wanted) < 0.03 * wanted
    assert abs(usual.count(size(text + picture * 3)) - wanted) > 0.05 * wanted


def test_a_model_that_reports_nonsense_does_not_make_the_budget_useless() -> None:
    tokens = Tokens()
    for _ in range(20):
        tokens.learn((2_000.0, 0.0), 10)
    assert tokens.count((10_000.0, 0.0)) >= 3_000


def test_a_view_that_raises_is_named_once_and_left_out(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    def broken(parts: Any, chain: Any) -> Any:
        raise RuntimeError("oops")

    agent = memory.attach(walker(4), views=[broken, views.Redact("page 1")])
    with caplog.at_level(logging.WARNING, "smolmem"):
        assert agent.run("Read") == "done"
    assert caplog.text.count("the view broken is not applied: RuntimeError: oops") == 1
    assert "[redacted]" in texts(agent.model.prompts[-1])


def test_what_is_no_view_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidArgument, match="is not a view"):
        memory.attach(walker(2), views=["KeepImages"])


def test_a_view_of_ones_own_is_a_function(memory: Memory) -> None:
    def shout(parts: list[views.Part], chain: views.ViewChain) -> list[views.Part]:
        return [part for part in parts if part.role != "task"]

    agent = memory.attach(walker(2), views=[shout])
    agent.run("Read")
    assert all("Read" not in texts(prompt[1:]) for prompt in agent.model.prompts)


def test_views_work_as_plain_callbacks_without_a_store() -> None:
    agent = walker(9, step_callbacks=[shoot, views.KeepImages(last=1), views.Redact("page 3")])
    agent.run("Read")
    shown = texts(agent.model.prompts[-1])
    assert shown.count("<picture>") == 1
    assert "page 3" not in shown
    assert sum(bool(getattr(step, "observations_images", None)) for step in agent.memory.steps) == 4
    agent.memory.get_full_steps()


def test_views_put_in_by_a_callback_are_taken_over_by_attach_and_given_back(memory: Memory) -> None:
    agent = walker(4, step_callbacks=[views.Redact("page")])
    agent.run("Read")
    memory.attach(agent)
    assert "page 2" not in texts(agent.write_memory_to_messages())
    memory.detach(agent)
    assert "page 2" not in texts(agent.write_memory_to_messages())
    assert "page 2" in agent.memory.steps[2].observations


def test_planning_prompts_pass_through_views_too(memory: Memory) -> None:
    model = Counting("a plan", code("print('secret')"), "another plan", code("final_answer(1)"))
    agent = CodeAgent(tools=[], model=model, verbosity_level=0, planning_interval=1)
    memory.attach(agent, views=[views.Redact("secret")])
    agent.run("Go")
    assert "secret" not in texts(model.prompts[2])
    assert "[redacted]" in texts(model.prompts[2])


def test_preview_tells_what_would_be_sent_and_leaves_no_trace(memory: Memory) -> None:
    agent = memory.attach(walker(30), views=[views.TrimObservations(120), views.TokenBudget(3_600)])
    for number, _ in enumerate(memory.stepwise(agent, "Read"), 1):
        if number == 21:
            break
    seen = memory.preview(agent)
    assert seen == memory.preview(agent)
    assert repr(seen) == f"Preview({len(seen.messages)} messages, {seen.tokens:,} tokens, {seen.whole:,} without views)"
    assert seen.tokens <= 3_600 < seen.whole
    assert [view.name for view in seen.views] == ["TrimObservations", "TokenBudget"]
    assert seen.whole - sum(view.trimmed for view in seen.views) == seen.tokens
    assert 0 < seen.read_again < seen.tokens
    model = agent.model
    memory.detach(agent)
    again = walker(30)
    again.model = model
    memory.attach(again, views=[views.TrimObservations(120), views.TokenBudget(3_600)])
    memory.resume(again)
    assert abs(Counting.cost(model.prompts[21]) - seen.tokens) < 100
    assert texts(model.prompts[21]) == texts(seen.messages)


def test_preview_of_a_task_shows_the_first_prompt_of_its_run(memory: Memory) -> None:
    agent = memory.attach(walker(3), views=[views.Redact("secret")])
    memory.inject(agent, "The secret baseline is 80 ms", title="baseline")
    shown = memory.preview(agent, "Find the secret").messages
    agent.run("Find the secret")
    assert texts(shown) == texts(agent.model.prompts[0])
    assert len(memory.runs()) == 1


def test_a_summary_holds_no_more_than_the_views_before_it_show(memory: Memory) -> None:
    agent = code_agent(*[code(f"print('the key-1234{n}')") for n in range(8)], code("final_answer(1)"))
    memory.attach(agent, views=[views.Redact(r"key-\d+"), views.Summarize(keep_last=1)])
    agent.run("Go")
    assert "[Summary of" in texts(agent.model.prompts[-1])
    assert not any("key-1234" in texts(prompt) for prompt in agent.model.prompts)


def test_a_plan_and_last_words_are_redacted_too(memory: Memory) -> None:
    model = Scripted("a plan", code("print(1)"), "out of steps")
    agent = CodeAgent(tools=[], model=model, verbosity_level=0, planning_interval=3, max_steps=1)
    memory.attach(agent, views=[views.Redact(r"key-\d+")])
    agent.run("use key-777 now")
    assert len(model.prompts) == 3
    assert not any("key-777" in texts(prompt) for prompt in model.prompts)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda parts, chain: (part for part in parts), False),
        (lambda parts, chain: [], True),
        (lambda parts, chain: {}, True),
        (lambda parts, chain: None, True),
        (lambda parts, chain: [*parts, views.Part([None])], True),
        (lambda parts, chain: [*parts, views.Part([ChatMessage(MessageRole.USER, ["text"])])], True),
        (lambda parts, chain: (_ for _ in ()).throw(InvalidArgument("its own")), True),
    ],
)
def test_whatever_a_view_returns_a_prompt_is_sent(
    memory: Memory, caplog: pytest.LogCaptureFixture, made: Any, named: bool
) -> None:
    agent = memory.attach(walker(3), views=[made])
    with caplog.at_level(logging.WARNING, "smolmem"):
        assert agent.run("Read") == "done"
    assert [len(prompt) for prompt in agent.model.prompts] == [2, 5, 8]
    assert ("is not applied" in caplog.text) == named


def test_a_view_that_edits_messages_in_place_does_not_falsify_the_record(memory: Memory) -> None:
    def shout(parts: list[views.Part], chain: views.ViewChain) -> list[views.Part]:
        for part in parts:
            for message in part.messages:
                message.content[0]["text"] = message.content[0]["text"].replace("page", "PAGE")
        return parts

    agent = memory.attach(walker(4), views=[shout])
    agent.run("Read")
    steps = memory.steps(kind="action")[::-1]
    assert [list(step.to_smolagents().model_input_messages) for step in steps] == agent.model.prompts
    assert "PAGE 1" in texts(agent.model.prompts[-1])


def test_a_bad_list_of_views_leaves_the_earlier_ones(memory: Memory) -> None:
    agent = memory.attach(walker(3), views=[views.Redact("page")])
    for bad in ([views.KeepImages(), "bad"], views.KeepImages(), [views.KeepImages]):
        with pytest.raises(InvalidArgument, match="view"):
            memory.attach(agent, views=bad)  # type: ignore[arg-type]
    agent.run("Read")
    assert "page 1" not in texts(agent.model.prompts[-1])


@pytest.mark.parametrize("order", [0, 1])
def test_a_summary_survives_what_other_views_drop(memory: Memory, order: int) -> None:
    writer = Scripted(*[f"summary {n}" for n in range(20)])
    both = [views.TokenBudget(6_000), views.Summarize(writer, keep_last=2)]
    agent = memory.attach(walker(24, read="word " * 120), views=both[:: 1 if order else -1])
    agent.run("Read")
    told = ["❘ summary" in texts(prompt) for prompt in agent.model.prompts]
    assert any(told)
    assert all(told[told.index(True) :])
    assert len(writer.prompts) <= 11
    failing = code_agent(*[code("1/0") if n % 2 else code("print('fine')") for n in range(20)], code("final_answer(1)"))
    once = Scripted(*["told"] * 20)
    memory.attach(failing, views=[views.DropErrors(after=1), views.Summarize(once, keep_last=2)])
    failing.run("Try")
    assert len(once.prompts) <= 5
    assert all("The summary so far" in texts(prompt) for prompt in once.prompts[1:])


def test_a_summary_leaves_the_earlier_tasks_of_a_conversation(memory: Memory) -> None:
    agent = code_agent(*[code("print('page')")] * 9, code("final_answer(1)"))
    memory.attach(agent, views=[views.Summarize(keep_last=2)])
    agent.max_steps = 4
    agent.model.script = iter([*[code("print('page')")] * 3, code("final_answer(1)")] * 2)
    agent.run("My name is Ann")
    agent.run("Now B", reset=False)
    assert "My name is Ann" in texts(agent.model.prompts[-1])
    assert "[Summary of" in texts(agent.model.prompts[-1])


def test_without_a_store_one_runs_cuts_do_not_reach_the_next() -> None:
    agent = walker(7, step_callbacks=[views.Summarize(keep_last=2)])
    script = [code(f"print('page {n}')") for n in range(6)]
    for number in range(30):
        agent.model.script = iter([*script[: number % 7], code("final_answer(1)")])
        agent.model.prompts.clear()
        agent.run("Read")
        assert "[Summary of" not in texts(agent.model.prompts[0])
        assert len(agent.model.prompts) == number % 7 + 1


def test_an_agent_that_renders_its_own_way_is_shown_through_views_too(memory: Memory) -> None:
    class Own(CodeAgent):
        def write_memory_to_messages(self, summary_mode: bool = False) -> Any:
            more = ChatMessage(MessageRole.USER, [{"type": "text", "text": "Be kind."}])
            return [*super().write_memory_to_messages(summary_mode), more]

    writer = Scripted(*["told"] * 20)
    agent = Own(tools=[], model=Counting(*[code("print('z' * 900)")] * 10, code("final_answer(1)")), verbosity_level=0)
    memory.attach(agent, views=[views.TrimObservations(200, keep_last=1), views.Summarize(writer, keep_last=3)])
    agent.run("Go")
    assert len(writer.prompts) <= 10
    assert "are not shown" in texts(agent.model.prompts[-1])
    assert "Be kind." in texts(agent.model.prompts[-1])


def test_previews_and_renderings_at_rest_do_not_disturb_a_run(memory: Memory) -> None:
    writer = Scripted(*[f"summary {n}" for n in range(20)])
    agent = memory.attach(walker(14), views=[views.Summarize(writer, keep_last=3)])
    steps = memory.stepwise(agent, "Read")
    for number, _ in enumerate(steps, 1):
        if number == 8:
            break
    steps.close()
    memory.detach(agent)
    asked = len(writer.prompts)
    again = walker(14)
    again.model = agent.model
    memory.attach(again, views=[views.Summarize(writer, keep_last=3)])
    rest = memory.stepwise(again)
    memory.preview(again)
    again.write_memory_to_messages()
    next(rest)
    assert len(writer.prompts) == asked
    assert "summary 0" in texts(agent.model.prompts[-1])
    stop = threading.Event()

    def peek() -> None:
        while not stop.is_set():
            memory.preview(again)

    thread = threading.Thread(target=peek)
    thread.start()
    for _ in rest:
        pass
    stop.set()
    thread.join()
    assert len(writer.prompts) > asked
    assert f"summary {len(writer.prompts) - 1}" in texts(agent.model.prompts[-1])


def test_a_prompt_that_a_callback_renders_is_not_taken_for_what_was_sent(memory: Memory) -> None:
    def curious(step: Any, agent: Any) -> None:
        agent.write_memory_to_messages(summary_mode=True)

    agent = memory.attach(walker(12, step_callbacks=[curious]), views=[views.TokenBudget(6_000)])
    agent.run("Read")
    wanted = Counting.cost(agent.write_memory_to_messages())
    assert abs(memory.preview(agent).tokens - wanted) < 0.1 * wanted


def test_a_preview_counts_as_the_model_does_without_views_too(memory: Memory) -> None:
    agent = memory.attach(walker(6))
    agent.run("Read")
    wanted = Counting.cost(agent.write_memory_to_messages())
    assert abs(memory.preview(agent).tokens - wanted) < 0.05 * wanted


def test_a_preview_takes_an_agent_that_is_attached(memory: Memory) -> None:
    with pytest.raises(InvalidArgument, match="attached"):
        memory.preview(walker(2))


def test_the_agent_asks_for_a_step_by_its_number_alone(memory: Memory) -> None:
    memory.remember("Step 3 of the rollback procedure is to call Ann")
    agent = memory.attach(code_agent(code("print('other')"), code("final_answer(1)")), tools=True)
    agent.run("Go")
    ask = agent.tools["recall_memory"]
    assert "call Ann" in ask(query="step 3 of the rollback procedure")
    assert ask(query="step 99999") == "There is no step 99999."
    elsewhere = Memory(memory._store.url, scope="other")
    stranger = elsewhere.attach(code_agent(), tools=True)
    assert stranger.tools["recall_memory"](query="step 3") == "There is no step 3."
    elsewhere.close()


def test_the_source_of_a_quote_is_a_reference_that_the_memory_and_its_tools_take(memory: Memory) -> None:
    """A number alone would read as the number of the step in its run, which is another one."""
    memory.attach(code_agent(code("print('the cellar key hangs behind the clock')"), code("final_answer(1)"))).run("Go")
    found = memory.recall("where is the cellar key?")[0]
    reference = found.source.split()[3]
    assert memory.step(reference).id == found.step
    agent = memory.attach(code_agent(), tools=True)
    assert "behind the clock" in agent.tools["recall_memory"](query=f"step {reference}")
    assert f"step {reference} " in agent.tools["recall_memory"](query="cellar key")
