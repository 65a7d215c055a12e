//! NVLinks of one GPU, by raw calls.
//!
//! Raw because the wrapper's `remote_device_type` always answers Unknown (it writes into a
//! temporary), its field values can only ask about link 0 (the scope is zeroed), and its links end at
//! 18 although newer GPUs may have more.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::zeroed;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_NVLINK_GET_STATE;
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as TYPE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU as TYPE_CPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as TYPE_SWITCH, nvmlPciInfo_t,
    nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND as FUNCTION_NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};
use phalanx_profile::{MAX_LINKS_PER_GPU, PciAddress};

/// Active NVLinks of one GPU by what they lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    /// To NVSwitches, visible or not.
    pub(crate) to_switches: u8,
    /// To another GPU.
    pub(crate) to_gpus: BTreeMap<PciAddress, u8>,
}

impl LinkCounts {
    /// NVLinks that serve a pair: the direct ones, or else what both have towards the switches.
    pub(crate) fn between(first: (&Self, PciAddress), second: (&Self, PciAddress)) -> u8 {
        let direct = |from: &Self, to| from.to_gpus.get(&to).copied().unwrap_or(0);
        let links = direct(first.0, second.1).min(direct(second.0, first.1));
        if links > 0 { links } else { first.0.to_switches.min(second.0.to_switches) }
    }
}

/// Counts the active links of a GPU.
///
/// # Errors
/// The NVML code, when the GPU itself does not answer any more.
pub(crate) fn read(nvml: &Nvml, device: &Device<'_>) -> Result<LinkCounts, u32> {
    let mut counts = LinkCounts::default();
    for link in 0..u32::from(MAX_LINKS_PER_GPU) {
        let active = match is_active(nvml, device, link) {
            Ok(active) => active,
            // Past the last link. The number of links is never taken from the model.
            Err(INVALID_ARGUMENT) => break,
            Err(GPU_IS_LOST) => return Err(GPU_IS_LOST),
            Err(_) if link == 0 => break,
            Err(_) => false,
        };
        if active {
            count(&mut counts, nvml, device, link)?;
        }
    }
    Ok(counts)
}

fn count(counts: &mut LinkCounts, nvml: &Nvml, device: &Device<'_>, link: u32) -> Result<(), u32> {
    let kind = remote_type(nvml, device, link);
    let address = remote_address(nvml, device, link);
    for answer in [&kind.map(|_| ()), &address.as_ref().map(|_| ()).map_err(|code| *code)] {
        if *answer == Err(GPU_IS_LOST) {
            return Err(GPU_IS_LOST);
        }
    }
    match (kind, address) {
        (Ok(TYPE_SWITCH), _) => counts.to_switches += 1,
        // A CPU (POWER9) is no peer.
        (Ok(TYPE_CPU), _) => {}
        (Ok(TYPE_GPU), Ok(Some(peer))) => *counts.to_gpus.entry(peer).or_default() += 1,
        // The lane is up and nobody is known behind it.
        (Ok(TYPE_GPU), _) => {}
        // The type is not known: an address counts as a peer and only matters if a GPU has it; all
        // ones, or no address, is how a machine shows the switches it hides.
        (_, Ok(Some(peer))) => *counts.to_gpus.entry(peer).or_default() += 1,
        (_, Ok(None)) => counts.to_switches += 1,
        (_, Err(_)) => {}
    }
    Ok(())
}

/// Whether a link is up: nvmlDeviceGetNvLinkState, or the field value that newer GPUs answer instead.
fn is_active(nvml: &Nvml, device: &Device<'_>, link: u32) -> Result<bool, u32> {
    let code = match nvml.lib().nvmlDeviceGetNvLinkState.as_ref() {
        Ok(call) => {
            let mut active = 0;
            // SAFETY: the handle came from this library, and `active` may be written.
            match unsafe { call(device.handle(), link, &mut active) } {
                SUCCESS => return Ok(active != 0),
                code => code,
            }
        }
        Err(_) => FUNCTION_NOT_FOUND,
    };
    if !matches!(code, NOT_SUPPORTED | FUNCTION_NOT_FOUND) {
        return Err(code);
    }
    let Ok(call) = nvml.lib().nvmlDeviceGetFieldValues.as_ref() else { return Err(code) };
    // SAFETY: a plain C struct for which all zeros are valid.
    let mut value: nvmlFieldValue_t = unsafe { zeroed() };
    value.fieldId = NVML_FI_DEV_NVLINK_GET_STATE;
    value.scopeId = link;
    // SAFETY: the handle came from this library, and one value is given.
    match unsafe { call(device.handle(), 1, &mut value) } {
        SUCCESS if value.nvmlReturn == SUCCESS => {
            // SAFETY: the field is an unsigned int; all members of the union are plain numbers.
            Ok(unsafe { value.value.uiVal } != 0)
        }
        SUCCESS => Err(value.nvmlReturn),
        other => Err(other),
    }
}

fn remote_type(nvml: &Nvml, device: &Device<'_>, link: u32) -> Result<u32, u32> {
    let call = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    let mut kind = 0;
    // SAFETY: the handle came from this library, and `kind` may be written.
    match unsafe { call(device.handle(), link, &mut kind) } {
        SUCCESS => Ok(kind),
        code => Err(code),
    }
}

/// Address at the other end; `None` where it is no address of this machine.
fn remote_address(nvml: &Nvml, device: &Device<'_>, link: u32) -> Result<Option<PciAddress>, u32> {
    let call = nvml.lib().nvmlDeviceGetNvLinkRemotePciInfo_v2.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    // SAFETY: a plain C struct for which all zeros are valid.
    let mut info: nvmlPciInfo_t = unsafe { zeroed() };
    // SAFETY: the handle came from this library, and `info` may be written.
    match unsafe { call(device.handle(), link, &mut info) } {
        SUCCESS => {
            let bytes = info.busId.map(|character| character as u8);
            let text = CStr::from_bytes_until_nul(&bytes).ok().and_then(|text| text.to_str().ok());
            Ok(text.and_then(|text| text.parse().ok()))
        }
        code => Err(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_its_direct_links_or_what_both_have_to_the_switches() {
        let address = |bus| PciAddress { domain: 0, bus, device: 0, function: 0 };
        let counts = |to_switches, to_gpus: &[(u8, u8)]| LinkCounts {
            to_switches,
            to_gpus: to_gpus.iter().map(|(bus, links)| (address(*bus), *links)).collect(),
        };
        let between = |first: &LinkCounts, second: &LinkCounts| {
            LinkCounts::between((first, address(1)), (second, address(2)))
        };
        assert_eq!(between(&counts(0, &[(2, 4), (3, 2)]), &counts(0, &[(1, 4)])), 4);
        assert_eq!(between(&counts(0, &[(2, 4)]), &counts(0, &[(1, 3)])), 3, "a dead lane on one side");
        assert_eq!(between(&counts(0, &[(2, 4)]), &counts(0, &[])), 0, "the other GPU is lost");
        assert_eq!(between(&counts(18, &[]), &counts(17, &[])), 17);
        assert_eq!(between(&counts(18, &[]), &counts(0, &[])), 0);
    }
}
