//! What a token says of itself. Nothing of it counts before the API server has said that the token is good: until then
//! it only saves questions, and gives refusals their words.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::{AUDIENCE, TokenRefusal};

/// What is read of a token's claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    pub audiences: Vec<String>,
    pub expires: SystemTime,
}

#[derive(Deserialize)]
struct Written {
    aud: OneOrMore,
    exp: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Claims {
    pub(super) fn read(token: &str) -> Result<Self, TokenRefusal> {
        let malformed = |reason: &str| TokenRefusal::Malformed(reason.to_owned());
        let parts: Vec<&str> = token.split('.').collect();
        let [_, claims, _] = parts.as_slice() else {
            return Err(malformed("it has not three parts, as a token of a ServiceAccount has"));
        };
        let claims = decode(claims).ok_or_else(|| malformed("its second part is not base64url"))?;
        let written: Written =
            serde_json::from_slice(&claims).map_err(|error| malformed(&format!("its claims: {error}")))?;
        let audiences = match written.aud {
            OneOrMore::One(audience) => vec![audience],
            OneOrMore::More(audiences) => audiences,
        };
        let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(written.exp));
        Ok(Self { audiences, expires: expires.ok_or_else(|| malformed("its end is out of range"))? })
    }

    /// What the API server would say, too.
    pub(super) fn check(&self, now: SystemTime) -> Result<(), TokenRefusal> {
        if !self.audiences.iter().any(|audience| audience == AUDIENCE) {
            return Err(TokenRefusal::Audience(self.audiences.join(", ")));
        }
        match now.duration_since(self.expires) {
            Ok(since) => Err(TokenRefusal::Expired(since.as_secs())),
            Err(_) => Ok(()),
        }
    }
}

/// Bytes of a base64url text; padding at its end does not matter.
fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_decoded_and_others_are_not() {
        assert_eq!(decode("eyJhIjoxfQ"), Some(b"{\"a\":1}".to_vec()));
        assert_eq!(decode("-_8"), Some(vec![0xfb, 0xff]));
        assert_eq!(decode(""), Some(Vec::new()));
        assert_eq!((decode("a"), decode("a+b"), decode("ä")), (None, None, None));
    }

    #[test]
    fn claims_are_read_or_refused_in_words() {
        // {"aud":["phalanx"],"exp":100} and {"aud":"api","exp":100}
        let ours = Claims::read("h.eyJhdWQiOlsicGhhbGFueCJdLCJleHAiOjEwMH0.s").unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(ours.check(at(99)), Ok(()));
        assert_eq!(ours.check(at(107)).unwrap_err().to_string(), "the token has expired, 7 s ago");
        let other = Claims::read("h.eyJhdWQiOiJhcGkiLCJleHAiOjEwMH0.s").unwrap();
        let text = other.check(at(1)).unwrap_err().to_string();
        assert!(text.starts_with("token is for audience api, not for phalanx: "), "{text}");
        for wrong in ["", "a.b", "a.b.c.d", "a.!.c", "a.e30.c", "a.eyJhdWQiOjEsImV4cCI6MX0.c"] {
            assert!(matches!(Claims::read(wrong), Err(TokenRefusal::Malformed(_))), "{wrong}");
        }
    }
}
