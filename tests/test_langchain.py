"""LangChain and LangGraph: the standard suites against the real adapters, and the store beside LangGraph's own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pages
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from recalling import concepts
from scripted import code, code_agent

from smolmem import Memory
from smolmem.core.errors import InvalidArgument
from smolmem.integrations.langchain import MemoryChatHistory, MemoryRetriever, remember_documents
from smolmem.integrations.langgraph import MemoryStore

# --- the retriever ---------------------------------------------------------------------------------------------------


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _memory(self, tmp_path: Path) -> Iterator[None]:
        with Memory(tmp_path / "agent.db", embedder="off", durability="normal") as memory:
            for number in range(10):
                memory.remember(f"deployment {number} of the shop went to {'ABCDEFGHIJ'[number]}")
            type(self).opened = memory
            yield

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MemoryRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.opened, "k": 4}

    @property
    def retriever_query_example(self) -> str:
        return "where did each deployment of the shop go?"


def test_documents_say_where_they_come_from_and_how_far_to_trust_them(memory: Memory) -> None:
    note = memory.remember("the deployment key is in the vault", origin="web")
    memory.remember("the deployment was on Monday")
    [found] = MemoryRetriever(memory=memory, k=1).invoke("where is the deployment key?")
    assert found.id == f"note:{note.id}"
    assert (found.metadata["origin"], found.metadata["trust"], found.metadata["scope"]) == ("web", "low", "default")
    trusted = MemoryRetriever(memory=memory, filters={"min_trust": "high"}).invoke("deployment")
    assert [document.page_content for document in trusted] == ["the deployment was on Monday"]


def test_a_retriever_works_in_a_chain(memory: Memory) -> None:
    from langchain_core.runnables import RunnableLambda

    memory.remember("the shop is in Lisbon")
    chain = MemoryRetriever(memory=memory) | RunnableLambda(lambda documents: documents[0].page_content.upper())
    assert chain.invoke("where is the shop?") == "THE SHOP IS IN LISBON"


# --- embeddings and documents ----------------------------------------------------------------------------------------


class Concepts(Embeddings):
    """An embedding model of LangChain."""

    model = "concepts-1"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return concepts(texts)

    def embed_query(self, text: str) -> list[float]:
        return concepts([text])[0]


def test_an_embedding_model_of_langchain_is_an_embedder(path: Path) -> None:
    with Memory(path, embedder=Concepts()) as memory:
        memory.remember("the automobile is blue")
        memory.remember("the ocean is deep")
        memory.index()
        assert memory.recall("which vehicle?", floor=0.0)[0].text == "the automobile is blue"
        assert memory._recall._open_embedder().model == "Concepts concepts-1"
    with Memory(path, embedder=DeterministicFakeEmbedding(size=6)) as memory:
        assert memory.index() == 2, "vectors of another model are not compared"


def test_what_has_only_half_of_the_methods_is_no_embedder(path: Path) -> None:
    class Half:
        def embed_query(self, text: str) -> list[float]:
            return [1.0]

    with pytest.raises(InvalidArgument, match="embedder is"):
        Memory(path, embedder=Half())


def test_documents_are_remembered_once_and_not_trusted(memory: Memory) -> None:
    documents = [Document("the ocean is deep", metadata={"source": "sea.pdf"}), Document("a car", metadata={})]
    assert remember_documents(memory, documents).added == 2
    assert remember_documents(memory, documents).skipped == 2
    assert remember_documents(memory, documents, scope="acme/docs").added == 2
    assert {note.scope for note in memory.notes(scope="acme/*")} == {"acme/docs"}
    assert memory.notes(tag="sea.pdf")[0].origin == "import"


@pytest.mark.parametrize("as_retriever", [False, True])
def test_recall_asks_a_vector_store_too(path: Path, as_retriever: bool) -> None:
    store = InMemoryVectorStore(Concepts())
    store.add_texts(["the automobile is blue", "a recipe"], metadatas=[{"source": "car.pdf"}, {}])
    with Memory(path, embedder=Concepts()) as memory:
        memory.add_source(store.as_retriever() if as_retriever else store, 1)
        [found] = memory.recall("which vehicle?", floor=0.0)
        assert (found.text, found.trust, found.kind) == ("the automobile is blue", "low", "document")
        assert memory.notes(tag="car.pdf")[0].text == found.text
        assert "the automobile is blue" in memory.context("which vehicle?")
        assert len(memory.notes()) == 1, "a text is stored once"
        assert memory.recall("which vehicle?", floor=0.0, min_trust="medium") == []
        memory.forget(memory.notes()[0])
        assert memory.recall("which vehicle?", floor=0.0) == [], "what was forgotten does not come back"


def test_an_agent_is_reminded_of_what_a_vector_store_knows(memory: Memory) -> None:
    store = InMemoryVectorStore(Concepts())
    store.add_texts(["The automobile of the shop is parked in Lisbon"])
    memory.add_source(store)
    agent = memory.attach(code_agent(code("final_answer(1)")), recall=3)
    agent.run("Where is the automobile of the shop parked?")
    shown = str(agent.model.prompts[0])
    assert "parked in Lisbon" in shown
    assert "from import · trust low" in shown


@pytest.mark.promise("S10")
def test_a_source_belongs_to_its_scope(path: Path) -> None:
    asked: list[str] = []

    def search(question: str) -> list[str]:
        asked.append(question)
        return ["the automobile is blue"]

    with Memory(path, scope="acme/ann", embedder="off") as ann:
        ann.add_source(search)
        bob, acme = ann.scoped("acme/bob"), ann.scoped("acme/*")
        assert bob.recall("automobile") == []
        assert asked == []
        assert [one.scope for one in acme.recall("automobile")] == ["acme/ann"]
        assert bob.recall("automobile") == []
        ann.add_source(search, scope="acme/bob")
        assert [one.scope for one in bob.recall("automobile")] == ["acme/bob"]


def test_a_source_that_fails_is_left_out_and_logged_once(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    def search(question: str) -> list[str]:
        raise ConnectionError("no route to the store")

    memory.remember("the automobile is blue")
    memory.add_source(search)
    for _ in range(3):
        assert memory.recall("automobile")[0].text == "the automobile is blue"
    assert [record.message for record in caplog.records if "no route" in record.message] == [
        "smolmem recalls without a source that failed (ConnectionError: no route to the store)."
    ]
    with pytest.raises(InvalidArgument, match="a source is a vector store or retriever"):
        memory.add_source(7)


# --- chat history ----------------------------------------------------------------------------------------------------

CHAT = [
    SystemMessage("You are brief."),
    HumanMessage("Where is the shop?"),
    AIMessage("", tool_calls=[{"name": "find", "args": {"what": "shop"}, "id": "1", "type": "tool_call"}]),
    ToolMessage("Lisbon", tool_call_id="1", name="find"),
    AIMessage("In Lisbon.", id="run-7"),
    HumanMessage(
        [{"type": "text", "text": "and this?"}, {"type": "image_url", "image_url": {"url": "https://x.test/a"}}]
    ),
    HumanMessage("  spaces around  "),
    HumanMessage("Where is the shop?"),
]


def test_a_chat_comes_back_as_it_was_after_a_restart(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        MemoryChatHistory(memory, "ann").add_messages(CHAT)
        MemoryChatHistory(memory, "bob").add_user_message("something else")
    with Memory(path, embedder="off") as memory:
        history = MemoryChatHistory(memory, "ann")
        assert history.messages == CHAT
        history.clear()
        assert history.messages == []
        assert len(MemoryChatHistory(memory, "bob").messages) == 1


def test_a_chat_named_as_a_role_or_a_form_holds_only_its_own_messages(memory: Memory) -> None:
    MemoryChatHistory(memory, "ann").add_messages([HumanMessage("hello"), ToolMessage("x", tool_call_id="1")])
    assert [MemoryChatHistory(memory, name).messages for name in ("human", "text", "json", "tool")] == [[]] * 4


def test_recall_finds_messages_with_the_trust_of_who_said_them(memory: Memory) -> None:
    MemoryChatHistory(memory, "ann").add_messages([HumanMessage("The shop is in Lisbon"), AIMessage("Lisbon, noted")])
    found = {one.text: one.trust for one in memory.recall("shop in Lisbon", floor=0.0)}
    assert found == {"The shop is in Lisbon": "high", "Lisbon, noted": "medium"}


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
def test_history_works_with_langchains_wrapper(memory: Memory) -> None:
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_core.runnables.history import RunnableWithMessageHistory

    model = FakeListChatModel(responses=["Hello Ann", "Ann, you said"])
    chain = RunnableWithMessageHistory(model, lambda session_id: MemoryChatHistory(memory, session_id))
    for said in ("I am Ann", "Who am I?"):
        chain.invoke([HumanMessage(said)], config={"configurable": {"session_id": "s1"}})
    assert [message.content for message in MemoryChatHistory(memory, "s1").messages] == [
        *("I am Ann", "Hello Ann", "Who am I?", "Ann, you said")
    ]


# --- LangGraph's store -----------------------------------------------------------------------------------------------

ANN, BOB = ("users", "ann"), ("users", "bob%2fsmith/2 *")
ITEMS: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (ANN, "food", {"text": "likes pizza", "score": 3, "tags": ["a", "b"]}),
    (ANN, "sport", {"text": "plays chess", "score": 5, "nested": {"deep": [1, None, True]}}),
    (BOB, "food", {"text": "likes sushi", "score": 3}),
    (("users",), "über / key", {"text": "top", "score": None}),
    (("docs", "v1", "ann"), "x" * 300, {"text": "long key"}),
]


@pytest.fixture(params=["smolmem", "langgraph"])
def store(request: pytest.FixtureRequest, memory: Memory) -> Any:
    """Our store, and LangGraph's own in memory: the same tests hold for both."""
    made: Any = MemoryStore(memory) if request.param == "smolmem" else InMemoryStore()
    for namespace, key, value in ITEMS:
        made.put(namespace, key, value)
    return made


def test_items_are_read_changed_and_deleted(store: Any) -> None:
    for namespace, key, value in ITEMS:
        assert store.get(namespace, key).value == value
        assert (store.get(namespace, key).namespace, store.get(namespace, key).key) == (namespace, key)
    first = store.get(ANN, "food")
    store.put(ANN, "food", {"text": "likes rice"})
    changed = store.get(ANN, "food")
    assert changed.value == {"text": "likes rice"}
    if isinstance(store, MemoryStore):  # LangGraph's own store takes the time of the change
        assert changed.created_at == first.created_at
    assert changed.updated_at >= first.updated_at
    store.delete(ANN, "food")
    store.delete(ANN, "nothing")
    assert store.get(ANN, "food") is None
    assert store.get(BOB, "food").value["text"] == "likes sushi"
    store.put(ANN, "food", {"text": "again"})
    assert store.get(ANN, "food").value == {"text": "again"}


@pytest.mark.parametrize(
    ("prefix", "options", "keys"),
    [
        (("users",), {}, {"food", "sport", "über / key"}),
        (ANN, {}, {"food", "sport"}),
        ((), {"limit": 100}, {"food", "sport", "über / key", "x" * 300}),
        (("use",), {}, set()),
        (("users",), {"filter": {"score": 3}}, {"food"}),
        (("users",), {"filter": {"score": {"$gt": 3}}}, {"sport"}),
        (("users",), {"filter": {"score": {"$ne": 3}, "text": "top"}}, {"über / key"}),
        (("users",), {"limit": 0}, set()),
    ],
)
def test_searches_without_a_question_list_items(store: Any, prefix: Any, options: Any, keys: set[str]) -> None:
    if options.get("filter") == {"score": {"$gt": 3}} and isinstance(store, InMemoryStore):
        prefix = ANN  # LangGraph's own store fails on None
    assert {item.key for item in store.search(prefix, **options)} == keys


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [("docs", "v1", "ann"), ("users",), ANN, BOB]),
        ({"prefix": ("users",)}, [("users",), ANN, BOB]),
        ({"suffix": ("ann",)}, [("docs", "v1", "ann"), ANN]),
        ({"prefix": ("*", "v1")}, [("docs", "v1", "ann")]),
        ({"max_depth": 1}, [("docs",), ("users",)]),
        ({"limit": 1, "offset": 1}, [("users",)]),
    ],
)
def test_namespaces_are_listed(store: Any, options: Any, expected: Any) -> None:
    assert store.list_namespaces(**options) == expected


def test_operations_come_back_in_order_also_without_blocking_the_event_loop(store: Any) -> None:
    got = asyncio.run(
        store.abatch([GetOp(ANN, "food"), SearchOp(BOB), GetOp(ANN, "nothing"), PutOp(ANN, "new", {"a": 1})])
    )
    assert got[0].key == "food"
    assert [item.key for item in got[1]] == ["food"]
    assert got[2:] == [None, None]
    assert store.get(ANN, "new").value == {"a": 1}


@pytest.mark.promise("S10")
def test_namespaces_are_scopes(memory: Memory) -> None:
    store = MemoryStore(memory)
    for namespace, key, value in ITEMS:
        store.put(namespace, key, value)
    assert {note.scope for note in memory.notes(scope="default/users/ann", kind="item")} == {"default/users/ann"}
    assert {item.namespace for item in store.search(ANN, query="likes pizza or sushi")} == {ANN}
    other = MemoryStore(memory, scope="elsewhere")
    assert other.search((), query="pizza") == []
    assert other.get(ANN, "food") is None
    assert other.list_namespaces() == []


def test_search_is_by_words_and_by_vectors(path: Path) -> None:
    with Memory(path, embedder=concepts) as memory:
        store = MemoryStore(memory)
        store.put(ANN, "a", {"text": "owns an automobile"})
        store.put(ANN, "b", {"text": "sails the ocean", "private": True})
        store.put(ANN, "c", {"text": "vehicle of nobody"}, index=False)
        memory.index()
        best = store.search(("users",), query="which vehicle does ann have?")
        assert best[0].key == "a"
        assert best[0].score > 0
        assert all(item.key != "c" for item in best)
        assert store.get(ANN, "c").value == {"text": "vehicle of nobody"}
        assert store.search(ANN, query="sails", filter={"private": True})[0].key == "b"


def test_items_expire(memory: Memory, clock: Any) -> None:
    store = MemoryStore(memory)
    store.put(ANN, "code", {"n": 1}, ttl=10)
    assert store.get(ANN, "code").value == {"n": 1}
    clock.pass_by(timedelta(minutes=11).total_seconds())
    assert store.get(ANN, "code") is None
    assert store.search(ANN) == []


def test_a_value_that_is_not_json_is_refused(memory: Memory) -> None:
    store = MemoryStore(memory)
    with pytest.raises(InvalidArgument, match="value of 'k' is not JSON"):
        store.put(ANN, "k", {"x": object()})
    assert store.get(ANN, "k") is None


def test_a_graph_uses_the_store(memory: Memory) -> None:
    from langgraph.graph import END, START, StateGraph
    from langgraph.runtime import Runtime

    def remember(state: dict[str, str], runtime: Runtime[Any]) -> dict[str, str]:
        runtime.store.put(ANN, "city", {"text": state["said"]})
        return {"said": runtime.store.search(ANN, query="which city, Lisbon?")[0].value["text"]}

    graph = StateGraph(dict)
    graph.add_node("remember", remember)
    graph.add_edge(START, "remember")
    graph.add_edge("remember", END)
    done = graph.compile(store=MemoryStore(memory)).invoke({"said": "Ann lives in the city of Lisbon"})
    assert done["said"] == "Ann lives in the city of Lisbon"


# --- packages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("langgraph", "langgraph", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
    ],
)
def test_a_missing_package_is_one_sentence(module: str, package: str, extra: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import smolmem.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.strip().splitlines()[-1].endswith(f"pip install 'smolmem[{extra}]'.")


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parent.parent / "docs/langchain.md"
    assert len(pages.blocks(page)) >= 4
    pages.run(page)
