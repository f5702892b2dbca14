//! Forecasts are weights: exact where their polynomials are, and the published recursions in another form.

use flow_cache::{Forecast, Moment};
use flow_kernels::combine;
use proptest::prelude::*;

fn moment(step: u32, sigma: f64) -> Moment {
    Moment {
        step,
        steps: 28,
        sigma,
    }
}

/// Latest first: the forecast of `value(step, sigma)` at the last moment from those before it.
fn forecast(forecast: Forecast, moments: &[Moment], value: impl Fn(&Moment) -> f64) -> f64 {
    let (now, history) = moments.split_last().expect("some");
    let mut history = history.to_vec();
    history.reverse();
    history.truncate(forecast.depth());
    let weights = forecast.weights(now, &history);
    weights
        .iter()
        .zip(&history)
        .map(|(weight, moment)| weight * value(moment))
        .sum()
}

/// The recursion of diffusers' `TaylorSeerState`, on one number: update at the computed steps, predict at the last.
fn ladder(order: usize, computed: &[u32], now: u32, value: impl Fn(u32) -> f64) -> f64 {
    let mut factors: Vec<f64> = Vec::new();
    for (index, step) in computed.iter().enumerate() {
        let mut new = vec![value(*step)];
        for j in 0..order.min(factors.len()) {
            let gap = f64::from(step - computed[index - 1]);
            new.push((new[j] - factors[j]) / gap);
        }
        factors = new;
    }
    let k = f64::from(now - computed.last().expect("some"));
    let (mut sum, mut factor) = (0.0, 1.0);
    for (j, derivative) in factors.iter().enumerate() {
        if j > 0 {
            factor *= k / j as f64;
        }
        sum += derivative * factor;
    }
    sum
}

proptest! {
    #[test]
    fn newton_is_exact_on_polynomials_whatever_the_noise_levels(
        gaps in prop::collection::vec(0.02..0.2f64, 5),
        coefficients in prop::collection::vec(-2.0..2.0f64, 4),
    ) {
        let sigmas = gaps.iter().scan(1.0, |sigma, gap| { *sigma -= gap; Some(*sigma) });
        let moments: Vec<Moment> = sigmas.enumerate().map(|(step, sigma)| moment(step as u32, sigma)).collect();
        for order in 0..4 {
            let value = |m: &Moment| coefficients[..=order].iter().rev().fold(0.0, |sum, c| sum * m.sigma + c);
            let found = forecast(Forecast::Newton { order }, &moments, value);
            let expected = value(&moments[4]);
            prop_assert!((found - expected).abs() < 1e-8, "order {order}: {found} for {expected}");
        }
    }

    #[test]
    fn taylor_weights_are_the_published_recursion(
        gaps in prop::collection::vec(1..7u32, 2..6),
        values in prop::collection::vec(-3.0..3.0f64, 40),
        order in 0..4usize,
    ) {
        let steps: Vec<u32> = gaps.iter().scan(0, |step, gap| { *step += gap; Some(*step) }).collect();
        let (now, computed) = steps.split_last().expect("some");
        let moments: Vec<Moment> = steps.iter().map(|step| moment(*step, 0.0)).collect();
        let found = forecast(Forecast::Taylor { order }, &moments, |m| values[m.step as usize]);
        let expected = ladder(order, computed, *now, |step| values[step as usize]);
        prop_assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
    }

    #[test]
    fn a_combination_is_the_sum_of_its_terms(
        length in 1..3000usize,
        weights in prop::collection::vec(-2.0..2.0f32, 1..4),
        with_base in any::<bool>(),
    ) {
        let value = |term: usize, index: usize| ((index * 7 + term * 13) % 31) as f32 / 8.0 - 2.0;
        let terms: Vec<Vec<f32>> = (0..=weights.len())
            .map(|term| (0..length).map(|index| value(term, index)).collect())
            .collect();
        let weighted: Vec<(f32, &[f32])> =
            weights.iter().zip(&terms[1..]).map(|(weight, term)| (*weight, term.as_slice())).collect();
        let mut out = vec![f32::NAN; length];
        combine(with_base.then_some(&terms[0][..]), &weighted, &mut out);
        for (index, found) in out.iter().enumerate() {
            let base = if with_base { f64::from(terms[0][index]) } else { 0.0 };
            let expected = weighted.iter().fold(base, |sum, (w, term)| sum + f64::from(*w) * f64::from(term[index]));
            prop_assert!((f64::from(*found) - expected).abs() < 1e-5);
        }
    }
}

/// Steps that `taylorseer` computes of 28 by default.
const COMPUTED: [u32; 8] = [0, 1, 2, 4, 9, 14, 19, 24];

/// The largest error of an order-2 forecast of `t²` over the steps in between.
fn worst(of: impl Fn(u32) -> Forecast, value: impl Fn(&Moment) -> f64 + Copy) -> f64 {
    let error = |step: u32| {
        let mut moments: Vec<Moment> = (COMPUTED.iter().filter(|computed| **computed < step))
            .map(|step| moment(*step, f64::from(*step)))
            .collect();
        moments.push(moment(step, f64::from(step)));
        (forecast(of(step), &moments, value) - value(moments.last().expect("pushed"))).abs()
    };
    let between = (3..28).filter(|step| !COMPUTED.contains(step));
    between.map(error).fold(0.0, f64::max)
}

#[test]
fn taylor_as_published_is_exact_on_lines_and_off_on_parabolas_where_newton_is_exact() {
    let line = |m: &Moment| 3.0 * f64::from(m.step) - 1.0;
    let parabola = |m: &Moment| f64::from(m.step).powi(2);
    assert!(worst(|_| Forecast::Taylor { order: 1 }, line) < 1e-9);
    // The noise levels here are the step numbers, so Newton sees the same parabola.
    assert!(worst(|_| Forecast::Newton { order: 2 }, parabola) < 1e-9);
    let taylor = worst(|_| Forecast::Taylor { order: 2 }, parabola);
    assert!(taylor > 10.0, "backward differences are no derivatives: {taylor}");
}

/// FoCa as in cache-dit (`calibrators/foca.py`, after arXiv:2508.16211), on one number: half the sum of the difference of the
/// two latest computed values and of that of the two latest values, times the steps since; neither difference is divided by
/// its gap.
fn foca(computed: &[u32], until: u32, value: impl Fn(u32) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = Vec::new();
    let mut latest: Vec<u32> = Vec::new();
    for step in 0..=until {
        if computed.contains(&step) {
            latest.insert(0, step);
            values.push(value(step));
            continue;
        }
        let since = f64::from(step - latest[0]);
        let between_computed = value(latest[0]) - value(latest[1]);
        let [before, last] = values[values.len() - 2..] else {
            unreachable!("at least two steps are computed first")
        };
        values.push(value(latest[0]) + since / 2.0 * (between_computed + last - before));
    }
    values
}

#[test]
fn at_uneven_gaps_foca_of_cache_dit_misses_a_straight_line_that_every_forecast_here_hits() {
    let computed = [0, 1, 2, 6];
    let published = foca(&computed, 9, f64::from);
    assert_eq!(published[7..], [8.5, 12.5, 18.0], "for 7, 8 and 9");
    for now in 7..10 {
        let moments: Vec<Moment> = (computed.into_iter().chain([now]))
            .map(|step| moment(step, f64::from(step)))
            .collect();
        for of in [
            Forecast::Taylor { order: 1 },
            Forecast::Newton { order: 1 },
            Forecast::Newton { order: 2 },
        ] {
            let found = forecast(of, &moments, |moment| f64::from(moment.step));
            assert!((found - f64::from(now)).abs() < 1e-9, "{of:?}: {found} for {now}");
        }
    }
}

#[test]
fn with_fewer_features_than_its_depth_a_forecast_is_of_a_lower_order() {
    let now = moment(3, 0.7);
    let history = [moment(2, 0.8)];
    for forecast in [
        Forecast::Taylor { order: 2 },
        Forecast::Newton { order: 2 },
        Forecast::Extrapolated { weight: 0.5 },
    ] {
        assert_eq!(forecast.weights(&now, &history), [1.0], "{forecast:?}");
    }
    let history = [moment(2, 0.8), moment(1, 0.9)];
    let weights = Forecast::Extrapolated { weight: 0.5 }.weights(&now, &history);
    assert_eq!(weights, [1.5, -0.5]);
}
