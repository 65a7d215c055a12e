//! Amounts of Kubernetes resources, exact.
//!
//! Quantities are parsed as Kubernetes does (apimachinery `resource.Quantity`): optional decimal
//! point, then a decimal (`n u m k M G T P E`), binary (`Ki Mi Gi Ti Pi Ei`) or exponent (`e3`) suffix.
//! `cpu` counts thousandths of a core, everything else whole units (bytes, devices); fractions are
//! rounded up, as Kubernetes does. Nonsense is an error, never 0.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Whole NVIDIA GPUs.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// CPU, in thousandths of a core.
pub const CPU: &str = "cpu";
/// Memory, in bytes.
pub const MEMORY: &str = "memory";
/// Most resource names one object may carry.
pub const MAX_RESOURCE_NAMES: usize = 64;
/// Longest resource name: 253 characters of domain, a slash, 63 of name.
pub const MAX_RESOURCE_NAME_BYTES: usize = 317;

/// A resource's name, as Kubernetes spells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceName(Arc<str>);

impl ResourceName {
    /// Reads a resource name.
    ///
    /// # Errors
    /// Empty, too long, or characters that Kubernetes does not allow.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let bad = |expected| QuantityError { text: shorten(text), expected };
        if text.is_empty() || text.len() > MAX_RESOURCE_NAME_BYTES {
            return Err(bad("a resource name of 1 to 317 characters"));
        }
        let name = text.rsplit_once('/').map_or(text, |(_, name)| name);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
        let edges = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        if name.len() > 63
            || !text.bytes().all(allowed)
            || !edges(name.bytes().next())
            || !edges(name.bytes().last())
        {
            return Err(bad("a resource name such as cpu, memory or nvidia.com/gpu"));
        }
        Ok(Self(Arc::from(text)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for extended resources (`domain/name`): devices, which a node must confirm.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.0.contains('/')
    }

    /// True for a part of an NVIDIA GPU: time slices, MIG, memory, cores. Agents vouch for whole GPUs, one by one; who
    /// counted parts beside them would give one GPU away twice.
    #[must_use]
    pub fn is_part_of_gpu(&self) -> bool {
        match self.0.split_once('/') {
            Some(("nvidia.com", name)) => {
                (name.starts_with("gpu") && name != "gpu") || name.starts_with("mig-")
            }
            Some(("volcano.sh", name)) => name.starts_with("gpu-") || name.starts_with("vgpu-"),
            _ => false,
        }
    }

    /// True for devices that are only counted: the node lists how many it has, and nobody says which are whose.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.is_device() && self.as_str() != NVIDIA_GPU && !self.is_part_of_gpu()
    }

    /// Name of a resource that is known to be well-formed.
    #[must_use]
    pub fn known(text: &'static str) -> Self {
        Self(Arc::from(text))
    }

    /// What one unit of an amount of this resource means, in nano-units.
    fn nano_per_unit(&self) -> i128 {
        if self.as_str() == CPU { 1_000_000 } else { 1_000_000_000 }
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Why a quantity or resource name could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not {expected}")]
pub struct QuantityError {
    text: String,
    expected: &'static str,
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 40 {
        text.to_owned()
    } else {
        text.chars().take(37).collect::<String>() + "..."
    }
}

/// Reads a quantity of `resource` into its unit.
///
/// # Errors
/// Not a number, negative, too large for 63 bits, or a fraction of a device.
pub fn parse_quantity(resource: &ResourceName, text: &str) -> Result<u64, QuantityError> {
    let error = |expected| QuantityError { text: shorten(text), expected };
    const FORM: &str = "a quantity such as 2, 500m, 1.5, 16Gi or 1e3";
    let number_end = text
        .find(|character: char| !(character.is_ascii_digit() || matches!(character, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    if number.starts_with('-') {
        return Err(error("zero or more: a quantity must not be negative"));
    }
    let (mantissa, fraction_digits) = parse_decimal(number).ok_or_else(|| error(FORM))?;
    let (factor, exponent) = parse_suffix(suffix).ok_or_else(|| error(FORM))?;
    const LARGE: &str = "at most 9223372036854775807";
    // nano = mantissa * factor * 10^(exponent + 9 - fraction_digits), exact unless digits below nano are cut.
    let power = exponent + 9 - i32::try_from(fraction_digits).map_err(|_| error(FORM))?;
    let scaled = mantissa.checked_mul(factor).ok_or_else(|| error(LARGE))?;
    let nano = if scaled == 0 {
        0
    } else if power >= 0 {
        let scale = 10_i128.checked_pow(power.unsigned_abs()).ok_or_else(|| error(LARGE))?;
        scaled.checked_mul(scale).ok_or_else(|| error(LARGE))?
    } else {
        10_i128.checked_pow(power.unsigned_abs()).map_or(1, |divisor| divide_up(scaled, divisor))
    };
    let unit = resource.nano_per_unit();
    if resource.is_device() && nano % unit != 0 {
        return Err(error("a whole number: devices cannot be split"));
    }
    let amount = divide_up(nano, unit);
    if amount > i128::from(i64::MAX) {
        return Err(error(LARGE));
    }
    u64::try_from(amount).map_err(|_| error(LARGE))
}

fn divide_up(value: i128, divisor: i128) -> i128 {
    (value + divisor - 1) / divisor
}

/// `"1.50"` → (150, 2). At most 30 digits, so that nothing overflows.
fn parse_decimal(number: &str) -> Option<(i128, usize)> {
    let digits = number.strip_prefix('+').unwrap_or(number);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let joined = format!("{whole}{fraction}");
    if joined.is_empty() || joined.len() > 30 || !joined.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((joined.parse().ok()?, fraction.len()))
}

/// Suffix → (factor, decimal exponent).
fn parse_suffix(suffix: &str) -> Option<(i128, i32)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 0));
    let decimal = |exponent: i32| Some((1, exponent));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            exponent.parse().ok().and_then(decimal)
        }
    }
}

/// Amounts by resource name. Sorted by name; a zero amount is kept when it was named, because in a
/// queue's capability a named zero forbids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    #[serde(deserialize_with = "crate::wire::limited::<_, _, MAX_RESOURCE_NAMES>")]
    amounts: Vec<(ResourceName, u64)>,
}

impl Resources {
    /// No resources.
    #[must_use]
    pub const fn new() -> Self {
        Self { amounts: Vec::new() }
    }

    /// Sets the amount of one resource.
    pub fn set(&mut self, name: ResourceName, amount: u64) {
        match self.amounts.binary_search_by(|(known, _)| known.cmp(&name)) {
            Ok(at) => self.amounts[at].1 = amount,
            Err(at) => self.amounts.insert(at, (name, amount)),
        }
    }

    /// Builder form of `set`.
    #[must_use]
    pub fn with(mut self, name: ResourceName, amount: u64) -> Self {
        self.set(name, amount);
        self
    }

    /// Amount of a resource where it is named.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.amounts.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok().map(|at| self.amounts[at].1)
    }

    /// Amount of a resource; 0 where it is not named.
    #[must_use]
    pub fn amount(&self, name: &str) -> u64 {
        self.get(name).unwrap_or(0)
    }

    /// Whole NVIDIA GPUs asked for.
    #[must_use]
    pub fn gpus(&self) -> u64 {
        self.amount(NVIDIA_GPU)
    }

    /// Names and amounts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ResourceName, u64)> {
        self.amounts.iter().map(|(name, amount)| (name, *amount))
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.amounts.len()
    }

    /// True where nothing is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.amounts.is_empty()
    }

    /// Adds `other`; sums stop at the largest number instead of wrapping.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            let sum = self.amount(name.as_str()).saturating_add(amount);
            self.set(name.clone(), sum);
        }
    }

    /// Takes `other` away; stops at 0.
    pub fn subtract(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            if let Some(held) = self.get(name.as_str()) {
                self.set(name.clone(), held.saturating_sub(amount));
            }
        }
    }

    /// Raises each amount to at least that of `other`.
    pub fn raise_to(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            if self.get(name.as_str()).is_none_or(|held| held < amount) {
                self.set(name.clone(), amount);
            }
        }
    }
}

/// Writes an amount the way a person would: cores for cpu, binary units for memory.
#[must_use]
pub fn format_amount(resource: &str, amount: u64) -> String {
    if resource == CPU {
        return if amount.is_multiple_of(1000) { (amount / 1000).to_string() } else { format!("{amount}m") };
    }
    if resource == MEMORY || resource == "ephemeral-storage" {
        for (shift, suffix) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            if amount >= 1 << shift && amount.is_multiple_of(1 << shift) {
                return format!("{}{suffix}", amount >> shift);
            }
        }
        if amount >= 1 << 30 {
            return format!("{:.1}Gi", amount as f64 / (1_u64 << 30) as f64);
        }
    }
    amount.to_string()
}

impl fmt::Display for Resources {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, amount)) in self.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(formatter, "{separator}{name} {}", format_amount(name.as_str(), amount))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(resource: &str, text: &str) -> Result<u64, QuantityError> {
        parse_quantity(&ResourceName::parse(resource).unwrap(), text)
    }

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (resource, text, amount) in [
            ("cpu", "100m", 100),
            ("cpu", "0.1", 100),
            ("cpu", "2", 2000),
            ("cpu", "1u", 1),
            ("memory", "1Gi", 1 << 30),
            ("memory", "1.5Gi", 3 << 29),
            ("memory", "1e3", 1000),
            ("memory", "1E", 1_000_000_000_000_000_000),
            ("memory", "100m", 1),
            ("memory", "128974848000m", 128_974_848),
            ("nvidia.com/gpu", "8", 8),
            ("nvidia.com/gpu", "8000m", 8),
            ("nvidia.com/gpu", "9223372036854775807", 9_223_372_036_854_775_807),
            ("nvidia.com/gpu", "0", 0),
            ("pods", "+3", 3),
            ("cpu", "1e-9", 1),
            ("cpu", "0e-9999", 0),
        ] {
            assert_eq!(parse(resource, text), Ok(amount), "{resource} {text}");
        }
    }

    #[test]
    fn case_116_strange_numbers_are_errors_never_zero() {
        for text in [
            "",
            "NaN",
            "-0.5",
            "-1",
            "1e309",
            "1e99999",
            "0x8",
            "8 ",
            " 8",
            "1..2",
            "1Gi1",
            "Gi",
            "1gi",
            "9223372036854775808",
            "1e19",
            "--1",
            "1-2",
            "+-1",
            "inf",
            "1.5",
            "500m",
            ".",
            "1e",
            "99999999999999999999999999999999",
        ] {
            let error = parse("nvidia.com/gpu", text).expect_err(text).to_string();
            assert!(error.contains("is not"), "{error}");
        }
        assert_eq!(
            parse("nvidia.com/gpu", "0.5").unwrap_err().to_string(),
            "\"0.5\" is not a whole number: devices cannot be split"
        );
        assert!(ResourceName::parse(&"x".repeat(400)).is_err());
        assert!(ResourceName::parse("a b").is_err());
    }

    #[test]
    fn what_is_counted_is_no_part_of_a_gpu() {
        let is_counted = |name: &str| ResourceName::parse(name).unwrap().is_counted();
        for name in
            ["mars-tech.com/gpu", "rdma/hca_cpta", "nvidia.com/hostdev", "amd.com/gpu", "habana.ai/gaudi"]
        {
            assert!(is_counted(name), "{name}");
        }
        for name in [
            "cpu",
            "pods",
            "ephemeral-storage",
            "hugepages-2Mi",
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/gpumem-percentage",
            "nvidia.com/mig-1g.10gb",
            "volcano.sh/vgpu-number",
            "volcano.sh/gpu-memory",
        ] {
            assert!(!is_counted(name), "{name}");
        }
    }

    #[test]
    fn sums_never_wrap() {
        let gpu = ResourceName::known(NVIDIA_GPU);
        let mut sum = Resources::new().with(gpu.clone(), u64::MAX);
        sum.add(&Resources::new().with(gpu.clone(), 5));
        assert_eq!(sum.gpus(), u64::MAX);
        sum.subtract(&Resources::new().with(gpu, u64::MAX));
        assert_eq!(sum.gpus(), 0);
    }

    #[test]
    fn amounts_read_like_a_person_writes() {
        assert_eq!(format_amount("cpu", 32_000), "32");
        assert_eq!(format_amount("cpu", 500), "500m");
        assert_eq!(format_amount("memory", 256 << 30), "256Gi");
        assert_eq!(format_amount("nvidia.com/gpu", 8), "8");
    }
}
