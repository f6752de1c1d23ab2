"""A model whose answers pass through the ledger of the calling agent.

A model becomes an instance of a subclass of its own class, with the same name: references to the model stay valid, and
copies of it are copies of the original. A method that a user has set on the instance itself is wrapped there.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Callable, Hashable
from functools import cache, wraps
from typing import Any, cast

from smolmem.agents.ledger import Ledger, current

_METHODS = {"generate": Ledger.generate, "generate_stream": Ledger.stream}


class _Observed:
    """Mixed into a model's class."""

    _original_class: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        made = super().__reduce_ex__(protocol)
        if isinstance(made, tuple) and isinstance(made[1], tuple):
            own = tuple(self._original_class if each is type(self) else each for each in made[1])
            make = self._original_class.__new__ if made[0] is copyreg.__newobj__ else made[0]  # type: ignore[attr-defined]
            return (make, own, *made[2:])  # pickle refuses __newobj__ with another class than the observed one
        return made


class OwnMethod:
    """A method that was set on a model itself; it passes through the ledger, and otherwise is that method."""

    __slots__ = ("_name", "original")

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        object.__setattr__(self, "original", original)
        object.__setattr__(self, "_name", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the method, through the ledger if there is one."""
        return _through_ledger(self._name, self.original, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "original"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.original, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OwnMethod, (self.original, self._name)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.original)

    def __repr__(self) -> str:
        return repr(self.original)


def _through_ledger(name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    ledger = current.get()
    if ledger is None or not (args or "messages" in kwargs):  # a user calls it with a parameter of another name
        return original(*args, **kwargs)
    messages, *others = args or (kwargs.pop("messages"),)
    return _METHODS[name](ledger, original, messages, others, kwargs)


@cache
def _observing(cls: Any) -> type:
    def method(name: str) -> Any:
        @wraps(getattr(cls, name))
        def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
            original = getattr(cls, name).__get__(self)  # the class may have got another one since
            return _through_ledger(name, original, args, kwargs)

        return observed

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    methods = {name: method(name) for name in _METHODS if callable(getattr(cls, name, None))}
    return type(cls.__name__, (_Observed, cls), {**names, "_original_class": cls, **methods})


def observe(model: Any) -> None:
    """Makes a model's answers pass through the ledger of the calling agent."""
    own = getattr(model, "__dict__", {})
    for name in _METHODS:
        if callable(own.get(name)) and not isinstance(own[name], OwnMethod):
            own[name] = OwnMethod(own[name], name)
    if not isinstance(model, _Observed):
        try:
            model.__class__ = _observing(cast(Hashable, type(model)))
        except TypeError:  # a class whose instances cannot change it: its methods are wrapped on the instance
            for name in _METHODS:
                if hasattr(model, name) and hasattr(model, "__dict__") and name not in own:
                    own[name] = OwnMethod(getattr(model, name), name)


def unobserve(model: Any) -> None:
    """Gives a model its own class and methods back."""
    if isinstance(model, _Observed):
        model.__class__ = model._original_class
    own = getattr(model, "__dict__", {})
    for name in _METHODS:
        method = own.get(name)
        if isinstance(method, OwnMethod):
            del own[name]
            if getattr(method.original, "__self__", None) is not model:
                own[name] = method.original
