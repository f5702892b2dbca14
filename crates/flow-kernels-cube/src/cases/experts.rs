//! Cases of experts: routing, sorting, gathering and adding up, each with its gradient.

use super::checker::{Checker, Values};
use crate::experts::route::Shares;
use crate::experts::{Grouping, Mix, Routing, group_sums};
use crate::{Buffer, Element};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use std::ops::Range;

pub(super) fn check(checker: &mut Checker<'_>) {
    for [batch, tokens, experts, top_k] in [
        [1, 1, 1, 1],
        [3, 13, 5, 2],
        [2, 300, 8, 3],
        [1, 700, 64, 2],
        [2, 40, 33, 33],
    ] {
        for normalize in [false, true] {
            routing(
                checker,
                Routing {
                    batch,
                    tokens,
                    experts,
                    top_k,
                    normalize,
                },
            );
        }
    }
    a_score_that_is_no_number_comes_last(checker);
    for [slots, experts, used] in [[1, 1, 1], [7, 3, 3], [256, 2, 1], [1000, 8, 8], [5001, 33, 20]] {
        grouping(checker, [slots, experts, used]);
    }
    for [tokens, top_k, channels] in [[1, 1, 1], [13, 2, 7], [77, 3, 72], [300, 2, 64], [5, 4, 1152]] {
        mixing(checker, [tokens, top_k, channels]);
    }
    for (sizes, columns) in [
        (&[1][..], 1),
        (&[5, 0, 130, 1], 7),
        (&[0, 700, 3], 72),
        (&[9, 1, 0], 1152),
    ] {
        sums(checker, sizes, columns);
    }
}

fn upload(client: &Client, values: &[i32]) -> Handle {
    client.create_from_slice(i32::as_bytes(values))
}

/// Room for indices, none of which is one.
fn room(client: &Client, count: usize) -> Handle {
    upload(client, &vec![-1; count])
}

fn download(client: &Client, handle: &Handle) -> Vec<i32> {
    let bytes = client.read_one(handle.clone());
    bytes.map_or_else(|_| Vec::new(), |bytes| i32::from_bytes(&bytes).to_vec())
}

fn as_values(indices: &[i32]) -> Vec<f64> {
    indices.iter().map(|index| f64::from(*index)).collect()
}

/// Places of the largest scores, of equal ones the first, NaN last.
fn largest(scores: &[f64], count: usize) -> Vec<i32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let key = |at: usize| if scores[at].is_nan() { -1.0 } else { scores[at] };
    order.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
    order.truncate(count);
    order.into_iter().map(|at| at as i32).collect()
}

/// What a router gives and its gradient, by definition; `choices` are given.
struct Wanted {
    scores: Vec<f64>,
    weights: Vec<f64>,
    loads: Vec<f64>,
    balance: Vec<f64>,
}

impl Wanted {
    fn new(routing: &Routing, logits: &[f64], choices: &[i32]) -> Self {
        let Routing {
            batch,
            tokens,
            experts,
            top_k,
            normalize,
        } = *routing;
        let softmax = |row: &[f64]| {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let shares: Vec<f64> = row.iter().map(|x| (x - top).exp()).collect();
            let total: f64 = shares.iter().sum();
            shares.into_iter().map(move |share| share / total)
        };
        let scores: Vec<f64> = logits.chunks(experts).flat_map(softmax).collect();
        let mut weights = Vec::new();
        for (row, chosen) in choices.chunks(top_k).enumerate() {
            let of = |choice: &i32| scores[row * experts + *choice as usize];
            let total: f64 = chosen.iter().map(of).sum();
            let total = if normalize { total } else { 1.0 };
            weights.extend(chosen.iter().map(|choice| of(choice) / total));
        }
        let mut loads = vec![0.0; batch * experts];
        for (slot, choice) in choices.iter().enumerate() {
            let sample = slot / top_k / tokens;
            loads[sample * experts + *choice as usize] += experts as f64 / (tokens * top_k) as f64;
        }
        let mut balance = vec![0.0; batch];
        for (at, score) in scores.iter().enumerate() {
            let (sample, expert) = (at / experts / tokens, at % experts);
            balance[sample] += score * loads[sample * experts + expert] / tokens as f64;
        }
        Self {
            scores,
            weights,
            loads,
            balance,
        }
    }

    /// Gradients of the logits.
    fn gradient(
        &self,
        routing: &Routing,
        choices: &[i32],
        [dweights, dbalance]: [Option<&[f64]>; 2],
    ) -> Vec<f64> {
        let Routing {
            tokens,
            experts,
            top_k,
            normalize,
            ..
        } = *routing;
        let mut dscores = vec![0.0; self.scores.len()];
        if let Some(dbalance) = dbalance {
            for (at, d) in dscores.iter_mut().enumerate() {
                let (sample, expert) = (at / experts / tokens, at % experts);
                *d += dbalance[sample] * self.loads[sample * experts + expert] / tokens as f64;
            }
        }
        if let Some(dweights) = dweights {
            for (row, chosen) in choices.chunks(top_k).enumerate() {
                let at = |choice: &i32| row * experts + *choice as usize;
                let total: f64 = chosen.iter().map(|choice| self.scores[at(choice)]).sum();
                let dweights = &dweights[row * top_k..][..top_k];
                for (choice, dweight) in chosen.iter().zip(dweights) {
                    if normalize {
                        // Of `p_i / Σ p`.
                        dscores[at(choice)] += dweight / total;
                        let share = self.scores[at(choice)] / (total * total);
                        for other in chosen {
                            dscores[at(other)] -= dweight * share;
                        }
                    } else {
                        dscores[at(choice)] += dweight;
                    }
                }
            }
        }
        let rows = dscores.chunks(experts).zip(self.scores.chunks(experts));
        rows.flat_map(|(d, p)| {
            let mean: f64 = d.iter().zip(p).map(|(d, p)| d * p).sum();
            d.iter().zip(p).map(|(d, p)| p * (d - mean)).collect::<Vec<_>>()
        })
        .collect()
    }
}

fn routing(checker: &mut Checker<'_>, routing: Routing) {
    let name = format!("{routing:?}");
    let element = checker.element();
    let Routing {
        batch,
        tokens,
        experts,
        top_k,
        ..
    } = routing;
    let (rows, slots) = (batch * tokens, batch * tokens * top_k);
    let mut logits = checker.normal(rows * experts);
    // Every third token's experts tie; of every other third the first and the last do.
    for (row, logits) in logits.values.chunks_mut(experts).enumerate() {
        match row % 3 {
            0 => logits.fill(0.5),
            1 => logits[experts - 1] = logits[0],
            _ => {}
        }
    }
    let dweights = checker.draw(slots, Element::F32, 1.0, 0.0);
    let dbalance = checker.draw(batch, Element::F32, 1.0, 0.0);
    let wanted = [[true, true], [true, false], [false, true], [false, false]];
    let run = |checker: &mut Checker<'_>, samples: Range<usize>| {
        let client = checker.client().clone();
        let call = Routing {
            batch: samples.len(),
            ..routing
        };
        let part = |values: &Values| values.of(&samples, batch);
        let (rows, pairs) = (call.batch * tokens, call.batch * experts);
        let logits = checker.upload(&part(&logits));
        let scores = checker.room(rows * experts, Element::F32);
        let choices = room(&client, rows * top_k);
        let [weights, loads, balance] =
            [rows * top_k, pairs, call.batch].map(|length| checker.room(length, Element::F32));
        let done = call.scores(&client, &logits, &scores);
        checker.accept(&name, done);
        let done = call.choose(&client, &scores, &choices);
        checker.accept(&name, done);
        let shares = Shares {
            weights: &weights,
            loads: &loads,
            balance: &balance,
        };
        let done = call.weigh(&client, &scores, &choices, shares);
        checker.accept(&name, done);
        let mut found = vec![
            checker.download(&scores),
            as_values(&download(&client, &choices)),
            checker.download(&weights),
            checker.download(&loads),
            checker.download(&balance),
        ];
        let [dweights, dbalance] = [&dweights, &dbalance].map(|values| checker.upload(&part(values)));
        for [of_weights, of_balance] in wanted {
            let dlogits = checker.room(rows * experts, element);
            let gradients = [of_weights.then_some(&dweights), of_balance.then_some(&dbalance)];
            let done = call.backward(&client, (&scores, &choices, &loads), gradients, &dlogits);
            checker.accept(&name, done);
            found.push(checker.download(&dlogits));
        }
        found
    };
    let got = checker.samples(&name, batch, run);
    let rule: Vec<i32> = (got[0].chunks(experts).flat_map(|row| largest(row, top_k))).collect();
    checker.same(&format!("{name}: choices"), &got[1], &as_values(&rule));
    let want = Wanted::new(&routing, &logits.values, &rule);
    let wide = Element::F32;
    checker.close(&format!("{name}: scores"), &got[0], &want.scores, wide, 16);
    checker.close(&format!("{name}: weights"), &got[2], &want.weights, wide, 16);
    checker.close(&format!("{name}: loads"), &got[3], &want.loads, wide, 1);
    checker.close(&format!("{name}: balance"), &got[4], &want.balance, wide, tokens);
    for ([of_weights, of_balance], got) in wanted.into_iter().zip(&got[5..]) {
        let gradients = [
            of_weights.then_some(&dweights.values[..]),
            of_balance.then_some(&dbalance.values[..]),
        ];
        let want = want.gradient(&routing, &rule, gradients);
        let name = format!("{name}: dlogits of {of_weights} {of_balance}");
        // Sums of weights of size 1 cancel.
        checker.close_beside(&name, got, &want, element, experts, 1.0);
    }
}

fn a_score_that_is_no_number_comes_last(checker: &mut Checker<'_>) {
    let name = "choices among NaN";
    let client = checker.client().clone();
    let nan = f64::NAN;
    let scores = Values {
        values: vec![nan, 0.25, nan, 0.25, 0.0, nan, nan, nan, nan, nan],
        element: Element::F32,
    };
    let call = Routing {
        batch: 1,
        tokens: 2,
        experts: 5,
        top_k: 4,
        normalize: false,
    };
    let choices = room(&client, 8);
    let done = call.choose(&client, &checker.upload(&scores), &choices);
    checker.accept(name, done);
    let got = as_values(&download(&client, &choices));
    checker.same(name, &got, &[1.0, 3.0, 4.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
}

fn grouping(checker: &mut Checker<'_>, [slots, experts, used]: [usize; 3]) {
    let name = format!("grouping of {slots} slots by {experts} experts");
    let client = checker.client().clone();
    // Experts from `used` on have none.
    let choices: Vec<i32> = (0..slots).map(|at| (at * at / 3 % used) as i32).collect();
    let call = Grouping { slots, experts };
    let on_choices = upload(&client, &choices);
    let [of_rows, of_slots] = [0; 2].map(|_| room(&client, slots));
    let offsets = room(&client, experts + 1);
    let done = call.sort(&client, &on_choices, &of_rows, &of_slots, &offsets);
    checker.accept(&name, done);
    let mut order: Vec<usize> = (0..slots).collect();
    order.sort_by_key(|slot| choices[*slot]);
    let want: Vec<f64> = order.iter().map(|slot| *slot as f64).collect();
    checker.same(
        &format!("{name}: slots"),
        &as_values(&download(&client, &of_rows)),
        &want,
    );
    let mut rows = vec![0.0; slots];
    order
        .iter()
        .enumerate()
        .for_each(|(row, slot)| rows[*slot] = row as f64);
    checker.same(
        &format!("{name}: rows"),
        &as_values(&download(&client, &of_slots)),
        &rows,
    );
    let begin = |expert: usize| {
        choices
            .iter()
            .filter(|choice| (**choice as usize) < expert)
            .count()
    };
    let want: Vec<f64> = (0..=experts).map(|expert| begin(expert) as f64).collect();
    checker.same(
        &format!("{name}: offsets"),
        &as_values(&download(&client, &offsets)),
        &want,
    );
}

fn mixing(checker: &mut Checker<'_>, [tokens, top_k, channels]: [usize; 3]) {
    let name = format!("mix of {tokens} tokens with {top_k} experts each of {channels} channels");
    let element = checker.element();
    let client = checker.client().clone();
    let slots = tokens * top_k;
    // Some permutation: 7 and 13 have no factor in common with the numbers of slots here.
    let step = [7, 13, 11].into_iter().find(|step| !slots.is_multiple_of(*step));
    let step = step.unwrap_or(1);
    let rows: Vec<usize> = (0..slots).map(|slot| slot * step % slots).collect();
    let mut of_row = vec![0; slots];
    rows.iter()
        .enumerate()
        .for_each(|(slot, row)| of_row[*row] = slot as i32);
    let (on_slots, on_rows) = (
        upload(&client, &of_row),
        upload(&client, &rows.iter().map(|row| *row as i32).collect::<Vec<_>>()),
    );
    let (x, y) = (
        checker.normal(tokens * channels),
        checker.normal(slots * channels),
    );
    let weights = checker.draw(slots, Element::F32, 1.0, 0.0);
    let [on_x, on_y, on_weights] = [&x, &y, &weights].map(|values| checker.upload(values));
    let call = Mix {
        tokens,
        top_k,
        channels,
    };
    let run = |checker: &mut Checker<'_>| {
        let by_row = |checker: &mut Checker<'_>| checker.room(slots * channels, element);
        let by_token = |checker: &mut Checker<'_>| checker.room(tokens * channels, element);
        let (permuted, dx) = (by_row(checker), by_token(checker));
        let (combined, dy) = (by_token(checker), by_row(checker));
        let dweights: Buffer = checker.room(slots, Element::F32);
        let done = [
            call.permute(&client, &on_x, &on_slots, &permuted),
            call.permute_backward(&client, &on_y, &on_rows, &dx),
            call.combine(&client, &on_y, &on_weights, &on_rows, &combined),
            call.combine_backward(&client, &on_x, &on_weights, &on_slots, &dy),
            call.weights_backward(&client, &on_y, &on_x, &on_rows, &dweights),
        ];
        for done in done {
            checker.accept(&name, done);
        }
        [permuted, dx, combined, dy, dweights].map(|buffer| checker.download(&buffer))
    };
    let (got, again) = (run(checker), run(checker));
    for (first, second) in got.iter().zip(&again) {
        checker.same(&format!("{name}, twice"), first, second);
    }
    let mut want = [
        vec![0.0; slots * channels],
        vec![0.0; tokens * channels],
        vec![0.0; tokens * channels],
        vec![0.0; slots * channels],
        vec![0.0; slots],
    ];
    for (slot, row) in rows.iter().enumerate() {
        for channel in 0..channels {
            let (of_token, of_row) = (slot / top_k * channels + channel, row * channels + channel);
            want[0][of_row] = x.values[of_token];
            want[1][of_token] += y.values[of_row];
            want[2][of_token] += weights.values[slot] * y.values[of_row];
            want[3][of_row] = weights.values[slot] * x.values[of_token];
            want[4][slot] += y.values[of_row] * x.values[of_token];
        }
    }
    checker.same(&format!("{name}: permuted"), &got[0], &want[0]);
    let results = [
        ("dx", element, top_k),
        ("combined", element, top_k),
        ("dy", element, 1),
        ("dweights", Element::F32, channels),
    ];
    for ((what, element, terms), (got, want)) in results.into_iter().zip(got[1..].iter().zip(&want[1..])) {
        checker.close(&format!("{name}: {what}"), got, want, element, terms);
    }
}

fn sums(checker: &mut Checker<'_>, sizes: &[usize], columns: usize) {
    let name = format!("sums of groups of {sizes:?} rows of {columns}");
    let client = checker.client().clone();
    let mut offsets = vec![0i32];
    for rows in sizes {
        offsets.push(offsets[offsets.len() - 1] + *rows as i32);
    }
    let rows: usize = sizes.iter().sum();
    let x = checker.normal(rows * columns);
    let (on_x, on_offsets) = (checker.upload(&x), upload(&client, &offsets));
    let run = |checker: &mut Checker<'_>| {
        let sums = checker.room(sizes.len() * columns, Element::F32);
        let done = group_sums(&client, &on_x, &on_offsets, [sizes.len(), columns], &sums);
        checker.accept(&name, done);
        checker.download(&sums)
    };
    let (got, again) = (run(checker), run(checker));
    checker.same(&format!("{name}, twice"), &got, &again);
    let mut want = vec![0.0; sizes.len() * columns];
    for (group, want) in want.chunks_mut(columns).enumerate() {
        for row in offsets[group] as usize..offsets[group + 1] as usize {
            let row = &x.values[row * columns..][..columns];
            want.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }
    checker.close(&name, &got, &want, Element::F32, rows);
}
