//! Tests of the hardware path: the agent's real probe against the stand-in NVML library, and against
//! real GPUs where there are some. The tests are in `tests/`; `capture` records a live machine.
