//! Who an agent is: reviews of projected service account tokens.
