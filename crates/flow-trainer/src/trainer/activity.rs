//! Who computed: what accelerators did and did not do, and which kernels attention calls and matrix products got.

use super::Trainer;
use super::stale_rollout::both;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::Observer;
use crate::undone::{Undone, settle, undone};
use flow_accel::{Acceleration, Activity};
use std::collections::BTreeSet;

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// What the accelerators of all processes did in this iteration, of which `before` has what was counted before, if anything. What they
    /// did not do is named once, or stops a strict run.
    pub(super) fn activity(
        &mut self,
        before: &[Activity],
        observer: &mut dyn Observer,
    ) -> Result<Vec<Activity>, TrainError> {
        let own = both(before, self.acceleration.take_activity());
        let activity = self.distribution.gather_activity(own)?;
        self.name_undone(undone(&activity, &self.this_iteration()), observer)?;
        Ok(activity)
    }

    /// The iteration that is under way, in words.
    fn this_iteration(&self) -> String {
        format!("iteration {}", self.state.iteration + 1)
    }

    /// Names what accelerators did not do, once each, or stops a strict run.
    pub(super) fn name_undone(
        &mut self,
        found: Vec<Undone>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        for one in settle(found, self.settings.strict)? {
            if self.progress.named_undone.insert(one.key()) {
                observer.notice(&one.to_string());
            }
        }
        Ok(())
    }

    /// Names the kernels that attention calls and matrix products of a new kind got, in the log and in the manifest.
    pub(super) fn name_kernels(&mut self) -> Result<(), TrainError> {
        let plan = self.acceleration.training();
        let attention = plan.attention_log.since(self.progress.named_attention);
        self.progress.named_attention += attention.len();
        let attention: Vec<String> = attention.iter().map(ToString::to_string).collect();
        let products = plan.kernels.products();
        let products: Vec<String> = (products.into_iter())
            .filter(|product| self.progress.named_products.insert(product.clone()))
            .collect();
        if attention.is_empty() && products.is_empty() {
            return Ok(());
        }
        let Some(files) = &self.files else {
            return Ok(());
        };
        let mut manifest = files.directory.read_manifest()?;
        for (key, found) in [("attention", attention), ("products", products)] {
            found.iter().for_each(|each| tracing::info!("{key}: {each}"));
            let named = manifest
                .device
                .get(key)
                .and_then(|named| named.as_array().cloned());
            let named = named.into_iter().flatten();
            // Calls run on several threads, so the order of the first ones is no one's.
            let mut all: BTreeSet<String> = named
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect();
            all.extend(found);
            if !all.is_empty() {
                let all: Vec<String> = all.into_iter().collect();
                manifest.device.insert(key.into(), all.into());
            }
        }
        Ok(files.directory.write_manifest(&manifest)?)
    }
}
