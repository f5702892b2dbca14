//! Intervals against tables and closed forms.

use flow_report::*;
use proptest::prelude::*;

#[test]
fn student_quantiles_agree_with_the_published_table() {
    // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, column 0.975, three decimals.
    let table = [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (10, 2.228),
        (29, 2.045),
        (63, 1.998),
        (100, 1.984),
    ];
    for (freedom, expected) in table {
        assert_eq!(
            format!("{:.3}", student_t_quantile_95(freedom)),
            format!("{expected:.3}"),
            "{freedom}"
        );
    }
    // One degree of freedom is the Cauchy distribution, two have a closed form, too.
    let cauchy = (0.475 * std::f64::consts::PI).tan();
    assert!((student_t_quantile_95(1) - cauchy).abs() < 1e-9);
    let two = 0.95 * (2.0_f64 / (1.0 - 0.95 * 0.95)).sqrt();
    assert!((student_t_quantile_95(2) - two).abs() < 1e-9);
    assert!(student_t_quantile_95(100_000) > student_t_quantile_95(100_001));
    assert!(student_t_quantile_95(100_000) - student_t_quantile_95(100_001) < 3e-5);
}

#[test]
fn three_values_have_the_interval_one_computes_by_hand() {
    let interval = mean_interval(&[1.0, 2.0, 6.0], IntervalMethod::StudentT).unwrap();
    assert_eq!(interval.mean, 3.0);
    assert!((interval.standard_deviation.unwrap() - 7.0_f64.sqrt()).abs() < 1e-12);
    let half_width = 4.302_652_729_911_275 * (7.0_f64 / 3.0).sqrt();
    assert!((interval.high.unwrap() - (3.0 + half_width)).abs() < 1e-9);
    assert!((interval.low.unwrap() - (3.0 - half_width)).abs() < 1e-9);
    let normal = mean_interval(&[1.0, 2.0, 6.0], IntervalMethod::Normal).unwrap();
    assert!((normal.high.unwrap() - (3.0 + 1.959_963_984_540_054 * (7.0_f64 / 3.0).sqrt())).abs() < 1e-12);
}

#[test]
fn one_value_has_a_mean_and_no_interval() {
    let interval = mean_interval(&[0.25], IntervalMethod::StudentT).unwrap();
    assert_eq!(
        (interval.mean, interval.low, interval.standard_error),
        (0.25, None, None)
    );
    assert_eq!(interval.text(2), "0.25 (n = 1)");
}

#[test]
fn what_has_no_mean_is_refused() {
    let method = IntervalMethod::Normal;
    assert_eq!(mean_interval(&[], method), Err(StatisticsError::Empty));
    let error = mean_interval(&[1.0, f64::INFINITY], method).unwrap_err();
    assert_eq!(
        error,
        StatisticsError::NotFinite {
            index: 1,
            value: f64::INFINITY
        }
    );
    let none = IntervalMethod::Bootstrap {
        resamples: 0,
        seed: 1,
    };
    assert_eq!(mean_interval(&[1.0], none), Err(StatisticsError::NoResamples));
    assert_eq!(
        paired_difference(&[1.0], &[], method),
        Err(StatisticsError::Unpaired { before: 1, after: 0 })
    );
}

#[test]
fn a_paired_difference_sees_a_gain_that_the_spread_between_prompts_would_hide() {
    let before: Vec<f64> = (0..20).map(|prompt| f64::from(prompt) / 20.0).collect();
    let after: Vec<f64> = (0..)
        .zip(&before)
        .map(|(i, value)| {
            if i == 3 {
                *value
            } else {
                value + 0.05 + 0.001 * f64::from(i)
            }
        })
        .collect();
    let method = IntervalMethod::StudentT;
    let (a, b) = (
        mean_interval(&before, method).unwrap(),
        mean_interval(&after, method).unwrap(),
    );
    assert!(a.high > b.low, "the intervals of the two sides overlap");
    let difference = paired_difference(&before, &after, method).unwrap();
    assert!(difference.excludes_zero());
    assert_eq!(
        (difference.improved, difference.unchanged, difference.worsened),
        (19, 1, 0)
    );
    let none = paired_difference(&before, &before, method).unwrap();
    assert!(!none.excludes_zero() && none.unchanged == 20);
}

#[test]
fn the_bootstrap_is_fixed_by_its_seed_and_near_the_normal_interval_for_many_values() {
    // 1000 evenly spread values: the mean's distribution is normal to high accuracy.
    let values: Vec<f64> = (0..1000).map(|i| f64::from(i * 7919 % 1000) / 1000.0).collect();
    let bootstrap = |seed| {
        mean_interval(
            &values,
            IntervalMethod::Bootstrap {
                resamples: 4000,
                seed,
            },
        )
        .unwrap()
    };
    assert_eq!(bootstrap(1), bootstrap(1));
    assert_ne!(bootstrap(1).low, bootstrap(2).low);
    let normal = mean_interval(&values, IntervalMethod::Normal).unwrap();
    let error = normal.standard_error.unwrap();
    // The quantiles of 4000 resamples have a standard error of about 0.04 standard errors of the mean.
    assert!((bootstrap(1).low.unwrap() - normal.low.unwrap()).abs() < 0.16 * error);
    assert!((bootstrap(1).high.unwrap() - normal.high.unwrap()).abs() < 0.16 * error);
}

#[test]
fn memory_is_probed_where_linux_tells_it() {
    if cfg!(target_os = "linux") {
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        let (now, peak) = (resident_bytes().unwrap(), peak_resident_bytes().unwrap());
        assert!(now >= block.len() as u64 && peak >= now / 2, "{now} {peak}");
        assert!((peak_resident_gib().unwrap() * BYTES_PER_GIB) as u64 >= peak);
    }
}

#[test]
fn durations_and_moments_are_written_for_people() {
    assert_eq!(human_duration(-0.0), "0.0 s");
    let texts = [0.04, 8.44, 59.96, 60.0, 185.4, 3599.7, 7620.0, f64::NAN].map(human_duration);
    assert_eq!(
        texts,
        [
            "0.0 s",
            "8.4 s",
            "1 min 00 s",
            "1 min 00 s",
            "3 min 05 s",
            "1 h 00 min",
            "2 h 07 min",
            "unknown"
        ]
    );
    let moment = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_700_000_000_900);
    assert_eq!(rfc3339(moment), "2023-11-14T22:13:20Z");
}

#[test]
fn an_interval_ends_where_the_values_end_by_their_nature() {
    let method = IntervalMethod::StudentT;
    let probability = ValueRange::new(0.0, 1.0);
    // The held-out probabilities of a run that came out well.
    let values = [0.9999, 0.99, 0.9998, 0.9999, 0.9999];
    let open = mean_interval(&values, method).unwrap();
    let cut = open.clone().within(probability);
    assert!(open.high.unwrap() > 1.0, "{open:?}");
    assert_eq!((cut.low, cut.high, cut.mean), (open.low, Some(1.0), open.mean));
    let low = mean_interval(&[0.0, 0.0, 0.02], method)
        .unwrap()
        .within(probability);
    assert_eq!(low.low, Some(0.0));
    // Differences of probabilities lie between -1 and 1.
    let difference = paired_difference(&[0.0, 0.1, 0.0], &[1.0, 0.6, 1.0], method).unwrap();
    assert!(difference.interval.high.unwrap() > 1.0);
    let difference = difference.of_values_within(probability);
    assert_eq!(difference.interval.high, Some(1.0));
    // One end alone, none, one value, and a range that the values contradict.
    let below = mean_interval(&[-0.1, -0.01], method)
        .unwrap()
        .within(ValueRange::new(f64::NEG_INFINITY, 0.0));
    assert_eq!(
        (below.high, below.low),
        (Some(0.0), mean_interval(&[-0.1, -0.01], method).unwrap().low)
    );
    assert_eq!(open.clone().within(ValueRange::default()), open);
    assert_eq!(
        mean_interval(&[0.5], method).unwrap().within(probability).high,
        None
    );
    let wrong = mean_interval(&[2.0, 3.0], method).unwrap().within(probability);
    assert_eq!((wrong.mean, wrong.high), (2.5, Some(2.5)));
    // As it is stored, with and without a range; summaries of older runs have none.
    for interval in [open, cut, below] {
        let text = serde_json::to_string(&interval).unwrap();
        assert_eq!(text.contains("range"), !interval.range.is_unbounded());
        assert_eq!(serde_json::from_str::<Interval>(&text).unwrap(), interval);
    }
}

proptest! {
    #[test]
    fn every_interval_holds_its_mean(values in prop::collection::vec(-1e6..1e6_f64, 2..40), seed in any::<u64>()) {
        for method in [IntervalMethod::StudentT, IntervalMethod::Normal] {
            let interval = mean_interval(&values, method).unwrap();
            prop_assert!(interval.low.unwrap() <= interval.mean && interval.mean <= interval.high.unwrap());
        }
        let interval = mean_interval(&values, IntervalMethod::Bootstrap { resamples: 50, seed }).unwrap();
        let (low, high) = (interval.low.unwrap(), interval.high.unwrap());
        let ends = values.iter().fold((f64::MAX, f64::MIN), |ends, v| (ends.0.min(*v), ends.1.max(*v)));
        let slack = 1e-9 * (ends.1 - ends.0).abs() + 1e-9;
        prop_assert!(low <= high && ends.0 - slack <= low && high <= ends.1 + slack);
    }
}
