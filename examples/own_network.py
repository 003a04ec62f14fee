"""A neural network of your own per table (needs the extra `torch`): each owner builds and keeps its block's part."""

import numpy as np
import pandas as pd
from torch import nn

import tablepuppet as tp

random = np.random.default_rng(0)
users = pd.DataFrame({"user": np.arange(300), "age": random.integers(18, 80, 300)})
ratings = pd.DataFrame({"user": random.integers(0, 300, 4000), "hour": random.integers(0, 24, 4000)})
age = users.age[ratings.user].to_numpy()
ratings["stars"] = 3 + np.sin(ratings.hour / 4) - np.abs(age - 45) / 30 + random.normal(0, 0.3, 4000)


def build(width: int, outputs: int, block: str) -> nn.Module:
    """One network per block: the ratings' is deeper than the users'."""
    hidden = 32 if block == "r" else 8
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


query = "SELECT r.hour, u.age, r.stars FROM ratings r JOIN users u ON r.user = u.user"
adam = tp.Sgd(optimizer="adam", learning_rate=0.02)

with tp.Federation({"ratings": [ratings[::2], ratings[1::2]], "users": users}) as federation:
    linear = federation.train(query, label="stars", model="linear")
    network = federation.train(query, label="stars", model=build, algorithm=adam, epochs=10, batch_size=256)
    print(f"linear model: test RMSE {linear.metrics['test']['rmse']:.3f}")
    print(f"own networks: test RMSE {network.metrics['test']['rmse']:.3f}")
    print(network.module("u"))
