//! Newtypes for everything that has an identity. An id of one kind cannot be passed where another
//! is meant.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// A node's name, as in the Kubernetes Node object.
    NodeName
);
name_type!(
    /// A queue's name. Queues are cluster-scoped.
    QueueName
);
name_type!(
    /// A pod's UID as the API server wrote it. A name comes back after a delete, a UID never.
    PodUid
);
name_type!(
    /// The UID of the cluster an agent's state belongs to: a node that moves to another cluster starts clean.
    ClusterId
);

/// A gang: the PodGroup of this name. `Display` writes `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GangName {
    /// Namespace of the PodGroup.
    pub namespace: Arc<str>,
    /// Name of the PodGroup.
    pub name: Arc<str>,
}

impl GangName {
    /// A gang's name from its two parts.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: Arc::from(namespace), name: Arc::from(name) }
    }
}

impl fmt::Display for GangName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// Why an id could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind} {text:?} is not valid: {expected}")]
pub struct IdError {
    kind: &'static str,
    text: String,
    expected: &'static str,
}

/// A GPU's UUID: the only name of a GPU that survives reboots and index changes (nvml.h,
/// nvmlDeviceGetUUID). Text form `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, also in JSON, where a
/// number of 128 bits would lose its last digits in most readers; 128 bits in binary messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId(pub u128);

impl Serialize for GpuId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for GpuId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
            text.parse().map_err(serde::de::Error::custom)
        } else {
            u128::deserialize(deserializer).map(Self)
        }
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0;
        write!(
            formatter,
            "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            (bits >> 96) as u32,
            (bits >> 80) as u16,
            (bits >> 64) as u16,
            (bits >> 48) as u16,
            bits & 0xffff_ffff_ffff
        )
    }
}

impl FromStr for GpuId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let error = || IdError {
            kind: "GPU UUID",
            text: text.chars().take(64).collect(),
            expected: "GPU- and 32 hex digits in groups of 8-4-4-4-12",
        };
        let digits = text.strip_prefix("GPU-").ok_or_else(error)?;
        let groups: Vec<&str> = digits.split('-').collect();
        let lengths = groups.iter().map(|group| group.len());
        if !lengths.eq([8, 4, 4, 4, 12])
            || !digits.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
        {
            return Err(error());
        }
        u128::from_str_radix(&groups.concat(), 16).map(Self).map_err(|_| error())
    }
}

/// The fencing token of a coordinator. Ordered by counter; two incarnations with one counter are
/// never both obeyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Term {
    /// Raised by compare-and-swap at every acquire.
    pub counter: u64,
    /// Drawn at process start.
    pub incarnation: u64,
}

impl fmt::Display for Term {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:08x}", self.counter, self.incarnation as u32)
    }
}

/// An agent's promise of GPUs to one pod. Unique over all terms and over all incarnations of one: the counter of
/// a term comes back when a store is set back to an old copy. Text form `TERM.INCARNATION-NUMBER`, of which
/// the first two are the leader's term as it is written everywhere; without `.INCARNATION` where that is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// Counter of the term that made the lease.
    pub term: u64,
    /// Upper half: lower half of the term's incarnation. Lower half: number of the lease within its term.
    pub serial: u64,
}

impl LeaseId {
    /// The lease of this number under a term.
    #[must_use]
    pub const fn new(term: Term, number: u32) -> Self {
        Self { term: term.counter, serial: (term.incarnation << 32) | number as u64 }
    }

    /// Number of the lease within its term.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.serial as u32
    }

    /// True where the lease was made under this very term.
    #[must_use]
    pub const fn is_of(self, term: Term) -> bool {
        self.term == term.counter && self.incarnation() == term.incarnation as u32
    }

    /// What is kept of the incarnation of its term.
    const fn incarnation(self) -> u32 {
        (self.serial >> 32) as u32
    }

    fn read(text: &str) -> Option<Self> {
        let (term, number) = text.split_once('-')?;
        let (counter, incarnation) = match term.split_once('.') {
            Some((counter, digits)) => {
                let is_hex = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                (counter, is_hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten()?)
            }
            None => (term, 0),
        };
        let whole = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !whole(counter) || !whole(number) {
            return None;
        }
        Some(Self::new(Term { counter: counter.parse().ok()?, incarnation }, number.parse().ok()?))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation() {
            0 => write!(formatter, "{}-{}", self.term, self.number()),
            incarnation => write!(formatter, "{}.{incarnation:08x}-{}", self.term, self.number()),
        }
    }
}

impl FromStr for LeaseId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::read(text).ok_or_else(|| IdError {
            kind: "lease id",
            text: text.chars().take(64).collect(),
            expected: "TERM.INCARNATION-NUMBER: a whole number, 8 hex digits, a whole number",
        })
    }
}

/// Number of an action; its outcome comes back as an event with the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActionId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_id_round_trips_and_refuses_nonsense() {
        let text = "GPU-0badcafe-0001-0203-0405-060708090a0b";
        assert_eq!(text.parse::<GpuId>().unwrap().to_string(), text);
        for bad in [
            "",
            "GPU-",
            "0badcafe-0001-0203-0405-060708090a0b",
            "GPU-+badcafe-0001-0203-0405-060708090a0b",
            "GPU-0",
        ] {
            assert!(bad.parse::<GpuId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn lease_id_round_trips_and_refuses_nonsense() {
        let id = LeaseId { term: 3, serial: 17 };
        assert_eq!(id.to_string(), "3-17");
        assert_eq!(id.to_string().parse::<LeaseId>().unwrap(), id);
        let id = LeaseId::new(Term { counter: 3, incarnation: 0xffff_ffff_00ab_cdef }, u32::MAX);
        assert_eq!(id.to_string(), "3.00abcdef-4294967295");
        assert_eq!(id.to_string().parse::<LeaseId>().unwrap(), id);
        for bad in
            ["3", "x-1", "3-4294967296", "3.abcdef-1", "3.+0abcdef-1", "3.-1", "+3-1", "3-+1", "-1", "3-"]
        {
            assert!(bad.parse::<LeaseId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_counter_that_comes_back_gives_other_lease_ids() {
        let term = |incarnation| Term { counter: 4, incarnation };
        assert_ne!(LeaseId::new(term(1), 1), LeaseId::new(term(2), 1));
        assert!(LeaseId::new(term(1), 1) < LeaseId::new(term(1), 2));
    }
}
