//! PCI addresses in the three spellings that are in use.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A PCI address. `Display` writes the spelling of sysfs, `0000:1b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain (segment). Some clouds and Grace boards use more than one.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl PciAddress {
    /// The spelling of NVML's `busId`, `00000000:1B:00.0`.
    #[must_use]
    pub fn nvml(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.{:X}", self.domain, self.bus, self.device, self.function)
    }

    /// The spelling of NVML's `busIdLegacy`, `0000:1B:00.0`.
    #[must_use]
    pub fn nvml_legacy(self) -> String {
        format!("{:04X}:{:02X}:{:02X}.{:X}", self.domain & 0xffff, self.bus, self.device, self.function)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Why a text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a PCI address such as 0000:1b:00.0")]
pub struct PciAddressError(String);

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Reads any of the spellings: 4 to 8 digits of domain, upper or lower case.
    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let read = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let hex = |digits: &str, least: usize, most: usize| {
                let fits = (least..=most).contains(&digits.len())
                    && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                if fits { u32::from_str_radix(digits, 16).ok() } else { None }
            };
            let address = Self {
                domain: hex(domain, 4, 8)?,
                bus: u8::try_from(hex(bus, 2, 2)?).ok()?,
                device: u8::try_from(hex(device, 2, 2)?).ok()?,
                function: u8::try_from(hex(function, 1, 1)?).ok()?,
            };
            (address.device < 32 && address.function < 8).then_some(address)
        };
        read().ok_or_else(|| PciAddressError(text.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_are_one_address() {
        let sysfs: PciAddress = "0009:1b:00.0".parse().unwrap();
        assert_eq!("00000009:1B:00.0".parse(), Ok(sysfs));
        assert_eq!("0009:1B:00.0".parse(), Ok(sysfs));
        assert_eq!(sysfs.nvml(), "00000009:1B:00.0");
        assert_eq!(sysfs.nvml_legacy(), "0009:1B:00.0");
        assert_eq!(sysfs.to_string(), "0009:1b:00.0");
    }

    #[test]
    fn hidden_switches_and_nonsense_are_no_addresses() {
        for bad in [
            "",
            "fffffff:ff:ff.0",
            "0000:1b:00",
            "0000:1b:20.0",
            "0000:1b:00.8",
            "00:1b:00.0",
            "0000:+1:00.0",
        ] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }
}
