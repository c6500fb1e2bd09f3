"""Money, electricity and CO2 of device-hours: the list's units, its ranges, and published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.spec.base import write_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.devices import device_names, load_device
from scalewright.spec.prices import COMMITMENTS, Band, _list, device_power, footprint, price_of, regions


@pytest.mark.parametrize(
    ("name", "cloud", "price"),
    [
        ("aws-p4d", "aws", 2.7447),  # 21.957642 an instance of eight
        ("a100-sxm-80", "aws", 3.4309),
        ("h100", "aws", 6.88),
        ("h100-nvl", "azure", 8.82),  # of two
        ("gb200", "spheron", 4.54),  # 9.08 a superchip of two GPUs
        ("tpu-v5p", "gcp", 4.20),  # 25,804.8 for 12,288 cores: two a chip
        ("h100", "nebius", 3.85),
    ],
)
def test_a_price_is_of_one_device(name: str, cloud: str, price: float) -> None:
    found = price_of(name, cloud=cloud)
    assert found.low == found.median == found.high == pytest.approx(price, rel=1e-3)
    assert found.currency == "USD"
    assert all(found.date and cloud in line for line in found.sources)


def test_an_h100_hour_differs_more_than_fourfold_between_clouds() -> None:
    """2.40 to 12.29: the median is over clouds, of which each counts once."""
    price = price_of("dgx-h100")
    assert [price.low, price.high] == pytest.approx([2.4024, 12.29])
    assert price.median == pytest.approx(3.99)  # lambda, between runpod's 3.34 and nebius' 3.85, and three dearer
    assert len(price.clouds) == 7
    assert "7 clouds" in price.words


def test_a_longer_commitment_is_cheaper_and_a_cluster_of_a_cloud_has_its_price() -> None:
    by = {name: price_of("tpu-v6e", name).median for name in ("on_demand", "reserved_1y", "reserved_3y", "spot")}
    assert list(by.values()) == sorted(by.values(), reverse=True)
    assert price_of("aws-p5").clouds == ("aws",)
    assert len(price_of("aws-p5", "reserved_1y").clouds) > 1  # AWS prints none: those of the others


def test_your_own_list_comes_first_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    write_yaml(
        path, {"currency": "eur", "prices": [{"device": "H100", "price": 16, "devices": 8, "date": "2026-11-01"}]}
    )
    price = price_of("h100", file=path)
    assert (price.low, price.high, price.currency) == (2.0, 2.0, "EUR")
    assert price_of("l40s", file=path).currency == "USD"  # which it lacks
    with pytest.raises(UserError, match="on_demand by yours"):
        price_of("h100", "spot", file=path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"device": "h800"}, "no price of h800-sxm is known"),
        ({"device": "h100", "cloud": "nobody"}, "on_demand by runpod, vast"),
        ({"device": "h100", "commitment": "weekly"}, "unknown commitment 'weekly'"),
        ({"device": "h1000x"}, "unknown cluster"),
    ],
)
def test_what_has_no_price_is_refused_with_what_the_list_has(asked: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        price_of(**asked)


def test_devices_without_a_price_are_those_that_no_public_list_has() -> None:
    """Others are cards that nobody rents out by the hour."""
    without = {load_device(name).id for name in device_names()} - {row.device for row in _list().prices}
    assert {"a800-sxm-80", "h800-sxm", "h20-sxm", "trn3", "tpu-v7x"} <= without
    assert not {"trn1", "trn2", "gaudi2", "gaudi3", "mi300x", "tpu-v4p", "b300-sxm", "l4"} & without
    assert price_of("trn2").median == pytest.approx(35.76 / 16)
    for name in without:
        with pytest.raises(UserError, match=r"--price 2\.50, or your list, --prices FILE"):
            price_of(name)


@pytest.mark.parametrize(
    "rows", ["{}", "prices: []", "prices: [{device: h100, price: -1}]", "prices: [{device: h100}]"]
)
def test_a_bad_list_is_refused(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(rows)
    with pytest.raises(UserError, match="price"):
        price_of("h100", file=path)


def test_the_limit_of_the_devices_is_what_model_cards_print() -> None:
    """BLOOM (Luccioni et al. 2022): 433,196 kWh of 1,082,990 hours; Llama 3.1: 27.51 GWh of 39.3 million."""
    assert footprint(1_082_990, "a100").device_kwh == pytest.approx(433_196)
    assert footprint(39.3e6, "h100").device_kwh == pytest.approx(27.51e6)


def test_a_node_draws_what_was_measured() -> None:
    """A node of eight H100: 4.7 to 6.7 kW cooled by liquid (MLPerf 4.0); 8.4 at worst (Latif et al. 2025)."""
    node = footprint(8, "h100", pue=1.0).energy_kwh
    assert 4.7 < node.low < 6.7 < node.median < node.high < 8.4


def test_energy_grows_with_hours_and_site_and_co2_with_the_grid() -> None:
    one, ten = footprint(1, "h100"), footprint(10, "h100")
    assert ten.energy_kwh.median == pytest.approx(10 * one.energy_kwh.median)
    assert footprint(1, "h100", pue=1.5).energy_kwh.median > footprint(1, "h100", pue=1.1).energy_kwh.median
    dirty, clean = (footprint(1, "h100", region).co2_kg for region in ("us-east1", "FR"))
    assert dirty.median / clean.median == pytest.approx(579.44 / 44)
    assert one.co2_kg.low < clean.median < dirty.median < one.co2_kg.high * 1.1  # without a region: nearly all of them
    assert any("by region" in line for line in one.assumed)
    assert not any("PUE" in line for line in footprint(1, "h100", pue=1.2).assumed)


def test_independent_factors_widen_a_band_less_than_their_product() -> None:
    energy = footprint(1, "h100").energy_kwh
    fixed = footprint(1, "h100", pue=1.18).energy_kwh
    assert fixed.high < energy.high < fixed.high * 1.58 / 1.18


@pytest.mark.parametrize("change", [{"region": "atlantis"}, {"pue": 0.9}, {"pue": float("nan")}])
def test_bad_sites_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UserError):
        footprint(1, "h100", **change)  # type: ignore[arg-type]


def test_power_is_of_the_longest_name_that_fits() -> None:
    assert device_power("h100-pcie")[0] < device_power("h100-sxm")[0] == 700
    assert device_power("rtx4090")[0] == 450
    assert "assumed" in device_power("nobody-s")[1]
    assert {"no", "us-east4", "world"} <= set(regions())


def test_bands_and_commitments_have_the_keys_of_the_answers() -> None:
    assert Band(1, 2, 3).times(2).dump() == {"p10": 2, "p50": 4, "p90": 6}
    assert COMMITMENTS[0] == "on_demand"


@pytest.mark.parametrize("device", ["h100", "a100", "a100-sxm-40", "tpu-v5e"])
def test_a_longer_commitment_is_compared_in_the_same_clouds(device: str) -> None:
    """An H100's year is printed by one dear cloud and one cheap one: dearer than an hour in the median of seven."""
    hour, year = (price_of(device, kind) for kind in ("on_demand", "reserved_1y"))
    assert year.median < hour.median
    assert year.low <= year.median <= year.high


def test_a_list_that_lacks_a_device_is_named(tmp_path: Path) -> None:
    write_yaml(tmp_path / "mine.yaml", {"prices": [{"device": "h100", "price": 2}]})
    assert "mine.yaml has none of it" in price_of("l40s", file=tmp_path / "mine.yaml").words
    assert "has none" not in price_of("h100", file=tmp_path / "mine.yaml").words


@pytest.mark.parametrize(
    "keys", [{"currency": "XXX"}, {"currency": "EU"}, {"prices": [{"device": "h100", "price": 0}]}]
)
def test_money_that_there_is_not_is_refused(tmp_path: Path, keys: dict[str, object]) -> None:
    write_yaml(tmp_path / "mine.yaml", {"prices": [{"device": "h100", "price": 2}], **keys})
    with pytest.raises(UserError):
        price_of("h100", file=tmp_path / "mine.yaml")
