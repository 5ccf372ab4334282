//! The leader's side of the feature level: asks all members what they read, and raises the level when all read more.

use crate::membership::features::{Reader, level_to_propose};
use crate::node::Inner;
use crate::operate::ask_members;
use openraft::ServerState;
use prefixd_index::command::{ClusterMeta, Command};
use std::sync::atomic::Ordering;

impl Inner {
    /// The level that a newcomer must read: what is in force, or was proposed by this node and may come to be.
    pub(crate) fn level_needed(&self) -> u32 {
        self.core.published.summary().meta.feature_level.max(self.level_proposed.load(Ordering::Relaxed))
    }

    /// Raises the level if every member reads a higher one. `held` is what was said last of why it stays.
    pub(crate) async fn raise_feature_level(&self, held: &mut Option<String>) {
        let meta = self.core.published.summary().meta;
        let own_max = self.config.feature_max;
        if own_max <= meta.feature_level {
            return;
        }
        // Nobody joins between the question and the commit.
        let Ok(_one_at_a_time) = self.changing.try_lock() else { return };
        let Some(metrics) = self.metrics() else { return };
        if metrics.state != ServerState::Leader || crate::join::unsettled(&metrics) {
            return;
        }
        let readers: Vec<Reader> = ask_members(self, &metrics)
            .await
            .into_iter()
            .filter(|(member, _)| member.node_id != metrics.id)
            .map(|(member, status)| (member.name, status.map(|status| status.feature_max)))
            .collect();
        match level_to_propose(meta.feature_level, own_max, &readers) {
            Ok(None) => {}
            Ok(Some(level)) => {
                tracing::info!(
                    level,
                    from = meta.feature_level,
                    "every member reads a higher feature level: raising it"
                );
                self.level_proposed.fetch_max(level, Ordering::Relaxed);
                self.propose_quietly(Command::ClusterMeta(ClusterMeta { feature_level: level, ..meta })).await;
            }
            Err(why) if held.as_ref() != Some(&why) => {
                tracing::warn!("{why}");
                *held = Some(why);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;
