//! A stand-in for libnvidia-ml.so: serves a node profile through the NVML C API, with the struct
//! layouts of `nvml-wrapper-sys`, so that the agent's real FFI path runs without a GPU.
//!
//! What is served is set by `phalanx_mock_configure`, or else by the environment:
//! `PHALANX_MOCK_PROFILE` (file, required), `PHALANX_MOCK_NODE` (seed of the GPU UUIDs, default: the
//! profile's name) and `PHALANX_MOCK_FAULTS` (file, read at every call; see `faults`). The profile is
//! read at `nvmlInit_v2`; a bad one gives NVML_ERROR_UNKNOWN and its reason on standard error.
//!
//! The state is one per loaded library. Two machines in one process need two copies of the file.

#![allow(non_snake_case, reason = "the names are those of the C API")]

mod device;
mod event;
mod faults;
mod link;
mod state;
mod system;

/// NVML return codes that are given here.
mod code {
    pub(crate) use nvml_wrapper_sys::bindings::{
        nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
        nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
        nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
        nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
        nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
        nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
        nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
        nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
        nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
    };
}
