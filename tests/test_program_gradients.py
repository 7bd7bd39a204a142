"""Gradients taken around the real programs that have one: two launches, and the values of JAX's own gradient."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "gradient_worker.py"
#: programs that set 64-bit types at import have a process of their own
GROUPS = {
    "plain": ["jax20909_layered_recurrence", "jax23479_cg_in_scan", "jax810_reward_to_go", "notion_ode_rk4_scan"],
    "x64": ["jaxley_hh_cable", "tinygp269_quasisep_cholesky"],
}
#: those of which a part is a gradient already, and larger ones
MORE = {
    "plain": [
        *("bartz136_gibbs_gamma", "jax13356_layer_scan_vjp", "jax29499_gp_random_walk", "jax4472_mlp_sgd_steps"),
        *("mppi_pendulum_mpc", "rl_cartpole_ppo_pure", "sax2_layered_mesh_scan", "snn_lif_surrogate_train"),
        *("so_gru_two_layer_train", "trajax16_ilqr"),
    ],
    "qe": ["qe440_logistic_map", "qe717_ge_arrow_fori", "qe_inventory_ss_dynamics"],
    "f64": ["jax36799_f64_3x3_scan"],
}


def run(names: list[str], *options: str, interpret: str = "0") -> None:
    env = os.environ | {"JAX_PLATFORMS": "cpu", "ONELAUNCH_INTERPRET": interpret}
    command = [sys.executable, "-W", "ignore", str(WORKER), *options, *names]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert [r["name"] for r in records] == names, done.stderr[-2000:]
    assert {r["name"]: r["problems"] for r in records if r["problems"]} == {}


@pytest.mark.parametrize("group", GROUPS)
def test_gradients(group: str) -> None:
    run(GROUPS[group])


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE)
def test_more_gradients(group: str) -> None:
    run(MORE[group])


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_gradients_by_kernels(group: str) -> None:
    run(GROUPS[group], "--kernels", interpret="1")
