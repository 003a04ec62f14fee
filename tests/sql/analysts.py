"""Small tables with the columns of public data sets: a Czech bank, a wholesaler, a hospital."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

Tables = dict[str, pd.DataFrame]
_rng = np.random.default_rng(3)


def _days(most: int, rows: int, start: str) -> Any:
    return pd.Series(pd.Timestamp(start) + pd.to_timedelta(_rng.integers(0, most, rows), unit="D"))


def _moments(days: int, rows: int, start: str) -> Any:
    return pd.Series(pd.Timestamp(start) + pd.to_timedelta(_rng.integers(0, days * 86_400, rows), unit="s"))


def _one_of(values: list[Any], rows: int) -> Any:
    return _rng.choice(np.array(values, object), rows)


def _frame(**columns: Any) -> pd.DataFrame:
    frame = pd.DataFrame(columns)
    times = [c for c in frame if str(frame[c].dtype).startswith("datetime")]
    return frame.astype(dict.fromkeys(times, "datetime64[us]"))


def bank() -> Tables:
    """account, client, disp, order, trans, loan, card, district."""
    accounts, clients, loans = 60, 75, 50
    return {
        "district": _frame(
            A1=np.arange(1, 9),
            A2=[f"Town '{k}'" for k in range(8)],
            A3=_one_of(["Prague", "north Moravia", "south Bohemia"], 8),
            A4=_rng.integers(40_000, 1_200_000, 8),
            A11=_rng.integers(8_000, 12_600, 8),
            A12=np.where(np.arange(8) == 3, np.nan, _rng.integers(1, 40, 8) / 8),
        ),
        "account": _frame(
            account_id=np.arange(1, accounts + 1),
            district_id=_rng.integers(1, 9, accounts),
            frequency=_one_of(["POPLATEK MESICNE", "POPLATEK TYDNE"], accounts),
            date=_days(1500, accounts, "1993-01-01"),
        ),
        "client": _frame(
            client_id=np.arange(1, clients + 1),
            gender=_one_of(["M", "F"], clients),
            birth_date=_days(14_000, clients, "1940-01-01"),
            district_id=_rng.integers(1, 9, clients),
        ),
        "disp": _frame(
            disp_id=np.arange(1, clients + 1),
            client_id=np.arange(1, clients + 1),
            account_id=np.r_[np.arange(1, accounts + 1), np.arange(1, clients - accounts + 1)],
            type=["OWNER"] * accounts + ["DISPONENT"] * (clients - accounts),
        ),
        "order": _frame(
            order_id=np.arange(150),
            account_id=_rng.integers(1, accounts + 1, 150),
            bank_to=_one_of(["A", "B", "C"], 150),
            amount=_rng.integers(100, 90_000, 150) / 4,
            k_symbol=_one_of(["SIPO", "UVER", "", None], 150),
        ),
        "trans": _frame(
            trans_id=np.arange(700),
            account_id=_rng.integers(1, accounts + 1, 700),
            date=_days(1600, 700, "1993-06-01"),
            type=_one_of(["PRIJEM", "VYDAJ"], 700),
            amount=_rng.integers(1, 100_000, 700) / 4,
            balance=_rng.integers(-1000, 200_000, 700) / 2,
            k_symbol=_one_of(["UROK", "SANKC. UROK", None], 700),
        ),
        "loan": _frame(
            loan_id=np.arange(loans),
            account_id=_rng.choice(accounts, loans, replace=False) + 1,
            date=_days(1200, loans, "1994-06-01"),
            amount=_rng.integers(5_000, 590_000, loans),
            duration=_rng.choice([12, 24, 36], loans),
            payments=_rng.integers(300, 10_000, loans) / 2,
            status=_one_of(["A", "B", "C", "D"], loans),
        ),
        "card": _frame(
            card_id=np.arange(40),
            disp_id=_rng.choice(clients, 40, replace=False) + 1,
            type=_one_of(["junior", "classic", "gold"], 40),
            issued=_moments(1500, 40, "1994-01-01"),
        ),
    }


def shop() -> Tables:
    """customers, orders, order_details, products, categories."""
    orders, products = 120, 25
    ordered = _days(600, orders, "1996-07-01")
    shipped = ordered + pd.to_timedelta(_rng.integers(1, 40, orders), unit="D")
    details = pd.DataFrame({"OrderID": _rng.integers(10_248, 10_248 + orders, 400)})
    details["ProductID"] = _rng.integers(1, products + 1, 400)
    details = details.drop_duplicates(ignore_index=True)
    return {
        "customers": _frame(
            CustomerID=[f"C{k:03d}" for k in range(20)],
            Country=_one_of(["Germany", "USA", "France"], 20),
            Region=_one_of(["WA", "SP", None], 20),
        ),
        "orders": _frame(
            OrderID=np.arange(10_248, 10_248 + orders),
            CustomerID=[f"C{k:03d}" for k in _rng.integers(0, 20, orders)],
            OrderDate=ordered,
            RequiredDate=ordered + pd.Timedelta(days=28),
            ShippedDate=shipped.where(_rng.random(orders) > 0.06),
            ShipVia=_rng.integers(1, 4, orders),
            Freight=_rng.integers(1, 4000, orders) / 8,
            ShipCountry=_one_of(["Germany", "USA", "France"], orders),
        ),
        "order_details": _frame(
            OrderID=details["OrderID"],
            ProductID=details["ProductID"],
            UnitPrice=_rng.integers(8, 800, len(details)) / 4,
            Quantity=_rng.integers(1, 60, len(details)),
            Discount=_rng.choice([0.0, 0.125, 0.25], len(details)),
        ),
        "products": _frame(
            ProductID=np.arange(1, products + 1),
            ProductName=[f"Product {k}" for k in range(products)],
            CategoryID=_rng.integers(1, 4, products),
            UnitPrice=_rng.integers(8, 800, products) / 4,
            Discontinued=_rng.random(products) < 0.2,
        ),
        "categories": _frame(CategoryID=[1, 2, 3], CategoryName=["Beverages", "Dairy", "Meat"]),
    }


def hospital() -> Tables:
    """patients, admissions, icustays, labevents, diagnoses_icd, prescriptions."""
    patients, stays, labs = 60, 90, 900
    admitted = _moments(3000, stays, "2150-01-01")
    at, cared = _rng.integers(0, stays, labs), _rng.integers(0, stays, 70)
    subjects = _rng.integers(10_000, 10_000 + patients, stays)
    return {
        "patients": _frame(
            subject_id=np.arange(patients) + 10_000,
            gender=_one_of(["M", "F"], patients),
            anchor_age=_rng.integers(18, 91, patients),
        ),
        "admissions": _frame(
            hadm_id=np.arange(stays) + 20_000,
            subject_id=subjects,
            admittime=admitted,
            dischtime=admitted + pd.to_timedelta(_rng.integers(3_600, 30 * 86_400, stays), unit="s"),
            admission_type=_one_of(["EMERGENCY", "ELECTIVE"], stays),
            marital_status=_one_of(["MARRIED", "SINGLE", None], stays),
            hospital_expire_flag=_rng.integers(0, 2, stays),
        ),
        "icustays": _frame(
            stay_id=np.arange(70) + 30_000,
            hadm_id=cared + 20_000,
            subject_id=subjects[cared],
            first_careunit=_one_of(["MICU", "SICU"], 70),
            los=_rng.integers(1, 90, 70) / 8,
        ),
        "labevents": _frame(
            labevent_id=np.arange(labs),
            hadm_id=at + 20_000,
            itemid=_rng.choice([50_912, 50_971, 51_222], labs),
            charttime=admitted.to_numpy()[at] + pd.to_timedelta(_rng.integers(0, 4 * 86_400, labs), unit="s"),
            valuenum=np.where(_rng.random(labs) < 0.05, np.nan, _rng.integers(1, 400, labs) / 4),
            flag=_one_of(["abnormal", None], labs),
        ),
        "diagnoses_icd": _frame(
            hadm_id=_rng.integers(20_000, 20_000 + stays, 300),
            seq_num=_rng.integers(1, 12, 300),
            icd_code=_one_of(["I10", "E119", "N179", "I509"], 300),
            icd_version=np.full(300, 10),
        ),
        "prescriptions": _frame(
            hadm_id=_rng.integers(20_000, 20_000 + stays, 200),
            drug=_one_of(["Heparin", "Insulin", "Aspirin 81"], 200),
            dose_val_rx=_one_of(["1", "2.5", "5-10", None], 200),
            route=_one_of(["IV", "PO"], 200),
        ),
    }
