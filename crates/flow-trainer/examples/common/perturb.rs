//! Weights that no fresh model has: without a zero, so that nothing is shut off.

use flow_core::rng::{Purpose, Stream};
use flow_core::{CoreError, Weights};

/// Standard deviation of what is added to every weight.
const PERTURBATION: f32 = 0.02;

/// Adds a little noise to every weight.
pub fn perturb(weights: &mut Weights) -> Result<(), CoreError> {
    for index in 0..weights.stored().len() {
        let mut values = weights.host(index);
        let mut noise = vec![0.0; values.len()];
        Stream::new(0, Purpose::Weights)
            .at(index as u64, 0)
            .fill_normal(&mut noise);
        values
            .iter_mut()
            .zip(noise)
            .for_each(|(value, noise)| *value += PERTURBATION * noise);
        weights.set_host(index, values)?;
    }
    Ok(())
}
