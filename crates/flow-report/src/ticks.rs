//! Round numbers for axes.

/// Ticks at multiples of 1, 2 or 5 times a power of ten from the largest one not above `low` to the smallest one not
/// below `high`, about `wanted` steps of them, and the step. At least two ticks for any finite ends.
pub fn nice_ticks(low: f64, high: f64, wanted: u32) -> (Vec<f64>, f64) {
    let (low, high) = if low < high {
        (low, high)
    } else {
        (low - 0.5, low + 0.5)
    };
    // Halves, because the difference of two large numbers may overflow.
    let rough = 2.0 * (0.5 * high - 0.5 * low) / f64::from(wanted.max(1));
    if !rough.is_finite() || rough < f64::MIN_POSITIVE * 1e3 {
        return (vec![low, high], high - low);
    }
    let exponent = rough.log10().floor() as i32;
    let power = power_of_ten(exponent);
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    let count = last - first;
    // Ends that are the same but for rounding give no countable steps.
    if !(1.0..=1000.0).contains(&count) || low + step == low {
        return (vec![low, high], high - low);
    }
    let ticks = (0..=count as u32).map(|index| {
        let multiple = first + f64::from(index);
        // Dividing by a whole power is exact where multiplying by 0.1 is not.
        if exponent < 0 {
            multiple * (step / power).round() / power_of_ten(-exponent)
        } else {
            multiple * step
        }
    });
    (ticks.collect(), step)
}

fn power_of_ten(exponent: i32) -> f64 {
    // Parsing gives the nearest number; `powi` accumulates rounding.
    format!("1e{exponent}").parse().unwrap_or(f64::INFINITY)
}

/// The texts of the ticks of one axis, `step` apart: as many decimals as the step needs; `k`, `M` and `G` if the
/// largest tick needs them; powers of ten for very small and very large numbers.
pub fn labels(ticks: &[f64], step: f64) -> Vec<String> {
    let largest = ticks
        .iter()
        .fold(0.0, |largest: f64, tick| largest.max(tick.abs()));
    let (unit, suffix) = match largest {
        _ if !(1e-4..1e12).contains(&largest) || step < 1e-6 * largest => {
            return ticks.iter().map(|tick| exponent_label(*tick)).collect();
        }
        size if size < 1e5 => (1.0, ""),
        size if size < 1e6 => (1e3, "k"),
        size if size < 1e9 => (1e6, "M"),
        _ => (1e9, "G"),
    };
    let decimals = (-(step / unit).log10() - 1e-9).ceil().clamp(0.0, 10.0) as usize;
    let text = |tick: &f64| {
        if *tick == 0.0 {
            "0".into()
        } else {
            format!("{:.decimals$}{suffix}", tick / unit)
        }
    };
    ticks.iter().map(text).collect()
}

fn exponent_label(tick: f64) -> String {
    let text = format!("{tick:.2e}");
    match text.split_once('e') {
        Some((digits, exponent)) if digits.contains('.') => format!(
            "{}e{exponent}",
            digits.trim_end_matches('0').trim_end_matches('.')
        )
        .replace("0e0", "0"),
        _ => text,
    }
}
