//! The gate of the controller's port. Two audiences: whoever sets policies, and the controller that reads and probes.
//! Tokens come from files, from a reviewer, or both; with neither the gate is open, and the configuration keeps an open
//! one on loopback.

use super::bearer;
use super::review::{Review, Verdict};
use super::tokens::TokenSet;
use crate::watched::Watched;
use std::sync::Arc;

/// Whom a path is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// /policy.
    Policy,
    /// /snapshot and /probe.
    Controller,
}

/// Why a call was not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No valid token for this audience.
    Unauthenticated,
    /// A valid token of somebody else.
    Forbidden,
    /// The reviewer can't be asked.
    Unavailable(String),
}

/// The gate.
#[derive(Default)]
pub struct Gate {
    policy: Option<Arc<Watched<TokenSet>>>,
    controller: Option<Arc<Watched<TokenSet>>>,
    review: Option<Review>,
}

impl Gate {
    /// A gate with what there is to judge by.
    pub fn new(
        policy: Option<Arc<Watched<TokenSet>>>,
        controller: Option<Arc<Watched<TokenSet>>>,
        review: Option<Review>,
    ) -> Self {
        Self { policy, controller, review }
    }

    /// True when nobody is asked for a token.
    pub fn is_open(&self) -> bool {
        self.policy.is_none() && self.controller.is_none() && self.review.is_none()
    }

    /// Judges the Authorization header of a call.
    ///
    /// # Errors
    /// Why it isn't let in.
    pub async fn admit(&self, audience: Audience, header: Option<&[u8]>) -> Result<(), Denial> {
        if self.is_open() {
            return Ok(());
        }
        let token = header.and_then(bearer).ok_or(Denial::Unauthenticated)?;
        let (own, other) = match audience {
            Audience::Policy => (&self.policy, &self.controller),
            Audience::Controller => (&self.controller, &self.policy),
        };
        let holds = |set: &Option<Arc<Watched<TokenSet>>>| set.as_ref().is_some_and(|set| set.current().holds(token));
        if holds(own) {
            return Ok(());
        }
        if holds(other) {
            return Err(Denial::Forbidden);
        }
        let Some(review) = &self.review else { return Err(Denial::Unauthenticated) };
        match review.judge(audience, token).await {
            Ok(Verdict::Allowed) => Ok(()),
            Ok(Verdict::SomebodyElse) => Err(Denial::Forbidden),
            Ok(Verdict::Invalid) => Err(Denial::Unauthenticated),
            Err(why) => Err(Denial::Unavailable(why)),
        }
    }
}
