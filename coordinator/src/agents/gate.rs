//! Who may knock: how many connections are between their first packet and the end of their admission, from one
//! source and in all. Pure: the accept loop carries out what it says.
//!
//! A source is an IPv4 address or an IPv6 network of 64 bits. No source can take all places, so that one that only
//! knocks keeps nobody else out. Where all places are taken and nobody gets through, the oldest of them are
//! given up: on a slow machine a handshake may take long, but then at least some end well.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Admissions at once, of all sources.
pub(super) const ADMISSIONS: usize = 256;
/// Of these, of one source.
pub(super) const ADMISSIONS_OF_A_SOURCE: usize = 128;
/// Those who wait for a place.
pub(super) const WAITING: usize = 2048;
/// Of these, of one source: a thousand agents behind one address find room.
pub(super) const WAITING_OF_A_SOURCE: usize = 1536;
/// With so many inside and before the gate, an address has to show that it can be reached.
const CALM: usize = 64;
/// Nobody got through for so long, and others wait: the oldest half is given up.
const STUCK: Duration = Duration::from_secs(1);
/// An agent dials anew after three seconds without an answer: whoever waits nearly as long waits for nothing.
const LONGEST_WAIT: Duration = Duration::from_millis(2500);

/// What becomes of a connection that arrives.
#[derive(Debug)]
pub(super) enum Arrival<T> {
    /// Its admission begins, under this number.
    Enter(u64, T),
    /// It waits for a place.
    Wait,
    /// There is no room for it.
    Shed(T),
}

/// One source's part.
#[derive(Debug)]
struct Source {
    admitting: usize,
    waiting: usize,
    /// When somebody of it last got through, or when it came.
    progress: Instant,
}

/// Everyone inside and before the gate.
#[derive(Debug)]
pub(super) struct Gate<T> {
    /// Source of each admission, by number: the oldest first.
    admitting: BTreeMap<u64, IpAddr>,
    waiting: VecDeque<(IpAddr, Instant, T)>,
    sources: BTreeMap<IpAddr, Source>,
    progress: Instant,
    next_number: u64,
}

/// The source of an address.
pub(super) fn source_of(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(whole) => IpAddr::V6((u128::from(whole) >> 64 << 64).into()),
        four => four,
    }
}

impl<T> Gate<T> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            admitting: BTreeMap::new(),
            waiting: VecDeque::new(),
            sources: BTreeMap::new(),
            progress: now,
            next_number: 1,
        }
    }

    pub(super) fn admitting(&self) -> usize {
        self.admitting.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// True where an address must show that it can be reached.
    pub(super) fn is_busy(&self) -> bool {
        self.admitting.len() + self.waiting.len() >= CALM
    }

    pub(super) fn arrive(&mut self, address: SocketAddr, item: T, now: Instant) -> Arrival<T> {
        let source = source_of(address);
        let known = self.sources.get(&source);
        let (inside, before) = known.map_or((0, 0), |known| (known.admitting, known.waiting));
        // Nobody overtakes those of the same source who wait.
        if before == 0 && inside < ADMISSIONS_OF_A_SOURCE && self.admitting.len() < ADMISSIONS {
            return Arrival::Enter(self.enter(source, now), item);
        }
        if before >= WAITING_OF_A_SOURCE || self.waiting.len() >= WAITING {
            return Arrival::Shed(item);
        }
        self.source(source, now).waiting += 1;
        self.waiting.push_back((source, now, item));
        Arrival::Wait
    }

    fn source(&mut self, source: IpAddr, now: Instant) -> &mut Source {
        self.sources.entry(source).or_insert(Source { admitting: 0, waiting: 0, progress: now })
    }

    fn enter(&mut self, source: IpAddr, now: Instant) -> u64 {
        if self.admitting.is_empty() {
            self.progress = now;
        }
        let entry = self.source(source, now);
        if entry.admitting == 0 {
            entry.progress = now;
        }
        entry.admitting += 1;
        let number = self.next_number;
        self.next_number += 1;
        self.admitting.insert(number, source);
        number
    }

    /// The admission of this number has ended, and whether the agent is let in.
    pub(super) fn leave(&mut self, number: u64, welcomed: bool, now: Instant) {
        let Some(source) = self.admitting.remove(&number) else { return };
        let entry = self.source(source, now);
        entry.admitting = entry.admitting.saturating_sub(1);
        if welcomed {
            entry.progress = now;
            self.progress = now;
        }
        self.forget_idle(source);
    }

    fn forget_idle(&mut self, source: IpAddr) {
        if self.sources.get(&source).is_some_and(|entry| entry.admitting == 0 && entry.waiting == 0) {
            self.sources.remove(&source);
        }
    }

    /// Who waits and may enter: the newest, whose agent will still be there when it is answered. Where more come than
    /// can be let in, the oldest first would be answered just when it has given up, and nobody would get in.
    pub(super) fn next(&mut self, now: Instant) -> Option<(u64, T)> {
        if self.admitting.len() >= ADMISSIONS {
            return None;
        }
        let has_place = |source: &IpAddr| {
            self.sources.get(source).is_none_or(|entry| entry.admitting < ADMISSIONS_OF_A_SOURCE)
        };
        let at = self.waiting.iter().rposition(|(source, _, _)| has_place(source))?;
        let (source, _, item) = self.waiting.remove(at)?;
        let entry = self.source(source, now);
        entry.waiting = entry.waiting.saturating_sub(1);
        Some((self.enter(source, now), item))
    }

    /// Admissions to give up now: their places are free already.
    pub(super) fn stuck(&mut self, now: Instant) -> Vec<u64> {
        let is_stuck = |progress: Instant| now.saturating_duration_since(progress) >= STUCK;
        let mut given_up = Vec::new();
        if self.admitting.len() >= ADMISSIONS && !self.waiting.is_empty() && is_stuck(self.progress) {
            given_up.extend(self.admitting.keys().take(ADMISSIONS / 2));
            self.progress = now;
        }
        let full = |entry: &&mut Source| entry.waiting > 0 && entry.admitting >= ADMISSIONS_OF_A_SOURCE;
        for (source, entry) in self.sources.iter_mut().filter(|(_, entry)| full(entry)) {
            if is_stuck(entry.progress) {
                let own = self.admitting.iter().filter(|(_, of)| *of == source).map(|(number, _)| *number);
                given_up.extend(own.take(ADMISSIONS_OF_A_SOURCE / 2));
                entry.progress = now;
            }
        }
        given_up.sort_unstable();
        given_up.dedup();
        given_up.iter().for_each(|number| self.leave(*number, false, now));
        given_up
    }

    /// Those who have waited too long: nobody is at the other end any more.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<T> {
        let mut gone = Vec::new();
        while let Some((source, since, item)) = self.waiting.pop_front() {
            if now.saturating_duration_since(since) < LONGEST_WAIT {
                self.waiting.push_front((source, since, item));
                break;
            }
            let entry = self.source(source, now);
            entry.waiting = entry.waiting.saturating_sub(1);
            self.forget_idle(source);
            gone.push(item);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(source: u8, port: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, source], u16::try_from(port).unwrap()))
    }

    /// Arrives so many times; gives how many entered, wait and were shed.
    fn arrive(gate: &mut Gate<u8>, source: u8, times: usize, now: Instant) -> (usize, usize, usize) {
        let mut counts = (0, 0, 0);
        for port in 0..times {
            match gate.arrive(address(source, port), source, now) {
                Arrival::Enter(..) => counts.0 += 1,
                Arrival::Wait => counts.1 += 1,
                Arrival::Shed(_) => counts.2 += 1,
            }
        }
        counts
    }

    #[test]
    fn one_source_takes_its_part_and_no_more() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let (of_a_source, waiting) = (ADMISSIONS_OF_A_SOURCE, WAITING_OF_A_SOURCE);
        assert_eq!(arrive(&mut gate, 1, 10_000, now), (of_a_source, waiting, 10_000 - of_a_source - waiting));
        assert!(gate.is_busy());
        assert_eq!(arrive(&mut gate, 2, 3, now), (3, 0, 0), "another source is not held up");
        assert_eq!(gate.admitting(), ADMISSIONS_OF_A_SOURCE + 3);
        assert_eq!(arrive(&mut gate, 3, 10_000, now).0, ADMISSIONS - ADMISSIONS_OF_A_SOURCE - 3);
        assert_eq!((gate.admitting(), gate.waiting()), (ADMISSIONS, WAITING));
    }

    #[test]
    fn a_free_place_goes_to_the_newest_whose_source_has_room() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        arrive(&mut gate, 2, ADMISSIONS_OF_A_SOURCE, now);
        arrive(&mut gate, 1, ADMISSIONS_OF_A_SOURCE, now);
        assert_eq!(arrive(&mut gate, 3, 1, now), (0, 1, 0));
        assert_eq!(arrive(&mut gate, 1, 1, now), (0, 1, 0));
        assert!(gate.next(now).is_none());
        // One of the second source leaves: the first source is at its bound, the third is not.
        gate.leave(1, true, now);
        assert_eq!(gate.next(now).map(|(_, source)| source), Some(3));
        gate.leave(ADMISSIONS_OF_A_SOURCE as u64 + 1, true, now);
        assert_eq!(gate.next(now).map(|(_, source)| source), Some(1));
        assert_eq!(gate.waiting(), 0);
    }

    #[test]
    fn the_oldest_are_given_up_where_nobody_gets_through_and_only_there() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        arrive(&mut gate, 1, ADMISSIONS_OF_A_SOURCE, now);
        assert!(gate.stuck(now + STUCK * 2).is_empty(), "nobody waits for their places");
        arrive(&mut gate, 1, 1, now);
        assert!(gate.stuck(now + STUCK / 2).is_empty());
        gate.leave(5, true, now + STUCK / 2);
        arrive(&mut gate, 1, 1, now);
        assert!(gate.stuck(now + STUCK).is_empty(), "one got through, the others may");
        gate.next(now + STUCK);
        let given_up = gate.stuck(now + STUCK * 2);
        assert_eq!((given_up.len(), given_up[0]), (ADMISSIONS_OF_A_SOURCE / 2, 1));
        assert!(!given_up.contains(&5), "it has left already");
        assert_eq!(gate.next(now + STUCK * 2).map(|(_, source)| source), Some(1));
        // Whoever is given up and ends now changes nothing.
        let admitting = gate.admitting();
        gate.leave(1, true, now + STUCK * 2);
        assert_eq!(gate.admitting(), admitting);
    }

    #[test]
    fn the_newest_is_let_in_first() {
        let now = Instant::now();
        let mut gate: Gate<usize> = Gate::new(now);
        for number in 0..ADMISSIONS_OF_A_SOURCE + 3 {
            let _ = gate.arrive(address(1, number), number, now);
        }
        gate.leave(1, true, now);
        assert_eq!(gate.next(now).map(|(_, item)| item), Some(ADMISSIONS_OF_A_SOURCE + 2));
    }

    #[test]
    fn a_refusal_is_no_progress() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        arrive(&mut gate, 1, ADMISSIONS_OF_A_SOURCE + 2, now);
        gate.leave(1, false, now + STUCK);
        gate.next(now + STUCK);
        assert_eq!(gate.stuck(now + STUCK).len(), ADMISSIONS_OF_A_SOURCE / 2);
    }

    #[test]
    fn all_places_of_many_sources_are_given_up_too() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        for source in 0..=255 {
            assert_eq!(arrive(&mut gate, source, 1, now), (1, 0, 0));
        }
        assert!(matches!(gate.arrive("[fd00::1]:1".parse().unwrap(), 0, now), Arrival::Wait));
        assert_eq!(gate.stuck(now + STUCK).len(), ADMISSIONS / 2);
        assert!(gate.next(now + STUCK).is_some());
    }

    #[test]
    fn who_waits_too_long_is_forgotten_and_nothing_is_left() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        arrive(&mut gate, 1, ADMISSIONS_OF_A_SOURCE + 4, now);
        assert!(gate.expired(now + LONGEST_WAIT / 2).is_empty());
        assert_eq!(gate.expired(now + LONGEST_WAIT).len(), 4);
        for number in 1..=ADMISSIONS_OF_A_SOURCE as u64 {
            gate.leave(number, number.is_multiple_of(2), now);
        }
        assert_eq!((gate.admitting(), gate.waiting(), gate.sources.len()), (0, 0, 0));
    }

    #[test]
    fn a_source_is_an_address_or_a_network() {
        let source = |text: &str| source_of(text.parse().unwrap());
        assert_eq!(source("10.0.0.1:5"), source("[::ffff:10.0.0.1]:6"));
        assert_ne!(source("10.0.0.1:5"), source("10.0.0.2:5"));
        assert_eq!(source("[fd00::1]:5"), source("[fd00::ffff:1]:5"));
        assert_ne!(source("[fd00:0:0:1::1]:5"), source("[fd00:0:0:2::1]:5"));
    }
}
