//! Versions of weights: the same while nobody writes, and never the same again.

use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_core::{Init, ParamLayout, ParamView, Weights};
use std::sync::Arc;

fn weights() -> Weights {
    let mut layout = ParamLayout::default();
    LayoutBuilder::new(&mut layout).param("weight", [2, 2], Init::Ones);
    Weights::init(Arc::new(layout), 0, &ComputeDevice::cpu())
}

#[test]
fn a_version_lasts_until_the_weights_are_written_to_and_never_comes_back() {
    let mut weights = weights();
    let version = |weights: &Weights| ParamView::plain(weights).version();
    let first = version(&weights);
    assert_eq!(first, version(&weights));
    assert!(first.is_alive());
    let mut seen = vec![first];
    for _ in 0..100 {
        weights.values_mut();
        let now = version(&weights);
        assert!(
            !seen.contains(&now),
            "an address that was freed is not given out again"
        );
        assert!(now.is_alive() && seen.iter().all(|old| !old.is_alive()));
        seen.push(now);
    }
}

#[test]
fn clones_share_a_version_until_one_is_written_to_and_adapters_are_part_of_it() {
    let weights = weights();
    let version = |weights: &Weights| ParamView::plain(weights).version();
    let mut clone = weights.clone();
    assert_eq!(version(&clone), version(&weights));
    clone.values_mut();
    assert_ne!(version(&clone), version(&weights));
    let view = ParamView::plain(&weights);
    assert_ne!(view.without_adapters().version(), view.version());
}
