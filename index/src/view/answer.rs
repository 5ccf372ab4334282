//! Answers that borrow from the index, and what they are turned into. They say what was ranked where it lies and decide
//! nothing; what is ranked is decided in `search`.

use super::names::{Seated, Seats};
use super::ranking::{Ranking, Row};
use crate::command::Credit;
use crate::lookup::rank;
use crate::lookup::{LookupAnswer, Reason, ReplicaScore};
use std::sync::Arc;

/// What was ranked, where it lies.
#[derive(Copy, Clone)]
pub(super) struct Ranked<'i> {
    pub(super) ranking: &'i Ranking,
    pub(super) seats: &'i Seats,
}

impl<'i> Ranked<'i> {
    /// The ranked matches with their members and scores, best first.
    pub(super) fn iter(self) -> impl Iterator<Item = (&'i Row, &'i Seated, f32)> {
        let Self { ranking, seats } = self;
        ranking.places().iter().filter_map(move |&place| {
            let (row, order, score) = ranking.in_place(place)?;
            Some((row, seats.at(order)?, score))
        })
    }

    fn scores(self) -> impl Iterator<Item = ScoreRef<'i>> {
        self.iter().map(|(row, seated, score)| ScoreRef {
            replica: &seated.replica,
            score,
            matched_tokens: row.tokens(),
            hit_prob: row.fresh,
            tier: rank::reported_tier(row.coldness),
        })
    }
}

/// The scores of an answer.
#[derive(Copy, Clone)]
pub(super) enum Scores<'i> {
    Ranked(Ranked<'i>),
    Listed(&'i [ReplicaScore]),
}

/// An answer to a lookup that borrows from the index: nothing is copied or counted for it. It lasts as long as the call
/// that it is given to, which keeps memory from being reused and should be short.
pub struct AnswerRef<'i> {
    /// The reason_code.
    pub reason: Reason,
    /// True when the answer carries the request's adapter_id.
    pub adapter_echo: bool,
    /// As in [`LookupAnswer::credits`].
    pub credits: Vec<Credit>,
    pub(super) scores: Scores<'i>,
}

/// One ranked replica of an [`AnswerRef`]; its fields are those of [`ReplicaScore`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ScoreRef<'i> {
    /// The replica.
    pub replica: &'i Arc<str>,
    /// Higher is better.
    pub score: f32,
    /// Tokens of the leading run.
    pub matched_tokens: i32,
    /// The estimate that what is promised is still there.
    pub hit_prob: f32,
    /// The coldest tier of the run.
    pub tier: i32,
}

impl AnswerRef<'_> {
    pub(super) fn early(reason: Reason) -> Self {
        Self { reason, adapter_echo: false, credits: Vec::new(), scores: Scores::Listed(&[]) }
    }

    /// How many replicas are ranked.
    pub fn len(&self) -> usize {
        match self.scores {
            Scores::Ranked(ranked) => ranked.ranking.places().len(),
            Scores::Listed(scores) => scores.len(),
        }
    }

    /// True when no replica is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives each score to `each`, best first.
    pub fn for_each_score(&self, each: impl FnMut(ScoreRef<'_>)) {
        self.scores().for_each(each);
    }

    /// Best first.
    pub fn scores<'a>(&'a self) -> impl Iterator<Item = ScoreRef<'a>> {
        // One of the two is empty.
        let (ranked, listed) = match self.scores {
            Scores::Ranked(ranked) => (Some(ranked), &[][..]),
            Scores::Listed(scores) => (None, scores),
        };
        let ranked = ranked.into_iter().flat_map(Ranked::scores);
        ranked.chain(listed.iter().map(ScoreRef::from))
    }

    /// The same answer, owned.
    pub(crate) fn to_owned(&self) -> LookupAnswer {
        let mut scores = Vec::with_capacity(self.len());
        self.for_each_score(|ScoreRef { replica, score, matched_tokens, hit_prob, tier }| {
            scores.push(ReplicaScore { replica: Arc::clone(replica), score, matched_tokens, hit_prob, tier });
        });
        LookupAnswer { reason: self.reason, scores, adapter_echo: self.adapter_echo, credits: self.credits.clone() }
    }
}

impl<'i> From<&'i ReplicaScore> for ScoreRef<'i> {
    fn from(of: &'i ReplicaScore) -> Self {
        let ReplicaScore { replica, score, matched_tokens, hit_prob, tier } = of;
        Self { replica, score: *score, matched_tokens: *matched_tokens, hit_prob: *hit_prob, tier: *tier }
    }
}
