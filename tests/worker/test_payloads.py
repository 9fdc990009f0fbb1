"""What a handler is given, by the annotation of its first parameter."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
import pytest

from harel import Event, InvalidArgument
from harel.engine.worker.payloads import DoesNotFit, reader

if TYPE_CHECKING:
    from decimal import Decimal


class Item(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    total: int
    at: datetime | None = None
    items: list[Item] = []


@dataclass
class Payment:
    by: str
    amounts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.by == "nobody":
            raise ValueError("nobody pays")


class Parcel(TypedDict):
    weight: float


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


class Row(msgspec.Struct, array_like=True):
    left: int


class Plain:
    pass


def takes_order(order: Order) -> None: ...
def takes_payment(payment: Payment, context: Decimal) -> None: ...
def takes_parcel(parcel: Parcel) -> None: ...
def takes_shape(shape: Circle | Square) -> None: ...
def takes_prices(prices: dict[str, int]) -> None: ...
def takes_numbers(numbers: dict[int, str]) -> None: ...
def takes_the_event(event: Event) -> None: ...
def takes_what_there_is(payload) -> None: ...  # type: ignore[no-untyped-def]
def takes_a_dict(payload: dict) -> None: ...  # type: ignore[type-arg]
def takes_any(payload: Any) -> None: ...
def takes_any_dict(payload: dict[str, Any]) -> None: ...
def takes_a_mapping(payload: Mapping[str, Any]) -> None: ...
def takes_an_object(payload: object) -> None: ...
def takes_plain(thing: Plain) -> None: ...
def takes_int(number: int) -> None: ...
def takes_list(numbers: list[int]) -> None: ...
def takes_row(row: Row) -> None: ...
def takes_kind(kind: Literal["a"]) -> None: ...
def takes_decimal(price: Decimal) -> None: ...
def takes_both(thing: Plain | Order) -> None: ...


class Shop:
    def method(self, order: Order) -> None: ...
    def __call__(self, order: Order) -> None: ...


def read(handler: Callable[..., Any], payload: dict[str, Any]) -> Any:
    return reader(handler)(Event("k", payload))


@pytest.mark.parametrize(
    ("handler", "payload", "made"),
    [
        (takes_order, {"total": 5, "at": "2024-02-29T12:00:00Z"}, Order(5, datetime(2024, 2, 29, 12, tzinfo=UTC))),
        (takes_order, {"total": 5, "more": True, "items": [{"sku": "a"}]}, Order(5, items=[Item("a")])),
        (takes_payment, {"by": "card", "amounts": {"eur": 5}}, Payment("card", {"eur": 5})),
        (takes_parcel, {"weight": 2}, {"weight": 2.0}),
        (takes_shape, {"type": "square", "side": 2.0}, Square(2.0)),
        (takes_prices, {"a": 1}, {"a": 1}),
        (takes_numbers, {"1": "a"}, {1: "a"}),
        (Shop().method, {"total": 5}, Order(5)),
        (Shop(), {"total": 5}, Order(5)),
        (functools.partial(takes_order), {"total": 5}, Order(5)),
        (functools.partial(Shop.method, Shop()), {"total": 5}, Order(5)),
    ],
)
def test_a_payload_is_made_into_what_is_annotated(
    handler: Callable[..., Any], payload: dict[str, Any], made: object
) -> None:
    got = read(handler, payload)
    assert got == made
    assert type(got) is type(made)


def test_annotations_that_are_no_strings_are_understood_too() -> None:
    def late(order: object) -> None: ...

    late.__annotations__["order"] = Order
    assert read(late, {"total": 5}) == Order(5)


@pytest.mark.parametrize(
    "handler",
    [
        *(takes_what_there_is, takes_a_dict, takes_any, takes_any_dict, takes_a_mapping, takes_an_object),
        lambda payload: None,
    ],
)
def test_without_an_annotation_the_payload_comes_as_it_is(handler: Callable[..., Any]) -> None:
    event = Event("k", {"total": "5"})
    assert reader(handler)(event) is event.payload


def test_the_event_comes_where_it_is_asked_for() -> None:
    event = Event("k", {"total": "5"})
    assert reader(takes_the_event)(event) is event


@pytest.mark.parametrize(
    ("handler", "payload", "said"),
    [
        (takes_order, {}, "Object missing required field `total`"),
        (takes_order, {"total": "5"}, "total: Expected `int`, got `str`"),
        (takes_order, {"total": 5, "at": "soon"}, "at: Invalid RFC3339 encoded datetime"),
        (takes_order, {"total": 5, "items": [{"sku": "a"}, {"sku": 7}]}, "items[1].sku: Expected `str`, got `int`"),
        (takes_payment, {"by": "card", "amounts": {"eur": "x"}}, "amounts[...]: Expected `int`, got `str`"),
        (takes_payment, {"by": "nobody"}, "nobody pays"),
        (takes_parcel, {}, "Object missing required field `weight`"),
        (takes_shape, {"type": "ring"}, "type: Invalid value 'ring'"),
        (takes_numbers, {"one": "a"}, "a key: Expected `int`, got `str`"),
    ],
)
def test_what_does_not_fit_is_said_with_its_field(
    handler: Callable[..., Any], payload: dict[str, Any], said: str
) -> None:
    with pytest.raises(DoesNotFit) as caught:
        read(handler, payload)
    assert str(caught.value) == said


@pytest.mark.parametrize("handler", [takes_plain, takes_int, takes_list, takes_row, takes_kind, takes_both])
def test_an_annotation_that_no_payload_fits_is_refused_at_once(handler: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{handler.__name__} takes .*, which no payload can be made into"):
        reader(handler)


def test_an_annotation_for_a_type_checker_alone_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidArgument, match=r"^takes_decimal takes Decimal, and Decimal is not found"):
        reader(takes_decimal)


def test_pydantic_is_recognised_without_being_imported() -> None:
    program = (
        "import sys, harel\n"
        "from tests.worker.test_payloads import takes_order, read\n"
        "read(takes_order, {'total': 5})\n"
        "print('pydantic' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


class TestPydantic:
    """Models of pydantic, where it is installed."""

    @pytest.fixture
    def handler(self) -> Callable[..., Any]:
        pydantic = pytest.importorskip("pydantic")
        model = pydantic.create_model(
            "Order", __config__=pydantic.ConfigDict(strict=True), total=(int, ...), at=(datetime | None, None)
        )
        outer = pydantic.create_model("Outer", order=(model, ...))

        def handle(outer: object) -> None: ...

        handle.__annotations__["outer"] = outer
        return handle

    def test_a_model_is_made_as_from_json(self, handler: Callable[..., Any]) -> None:
        made = read(handler, {"order": {"total": 5, "at": "2024-02-29T12:00:00Z"}})
        assert (made.order.total, made.order.at) == (5, datetime(2024, 2, 29, 12, tzinfo=UTC))

    def test_what_does_not_fit_is_said_with_its_field(self, handler: Callable[..., Any]) -> None:
        with pytest.raises(DoesNotFit, match=r"^order\.total: Field required$"):
            read(handler, {"order": {}})
        with pytest.raises(DoesNotFit, match=r"^order\.total: Input should be a valid integer$"):
            read(handler, {"order": {"total": "5"}})

    def test_a_dataclass_of_pydantics_is_checked_by_pydantic(self) -> None:
        pydantic = pytest.importorskip("pydantic")

        fields: list[Any] = [("by", str), ("amount", pydantic.PositiveInt, field(default=1))]
        paid = pydantic.dataclasses.dataclass(make_dataclass("Paid", fields))

        def handle(paid: object) -> None: ...

        handle.__annotations__["paid"] = paid
        assert read(handle, {"by": "card", "amount": 2}).amount == 2
        with pytest.raises(DoesNotFit, match=r"^amount: Input should be greater than 0$"):
            read(handle, {"by": "card", "amount": -1})
