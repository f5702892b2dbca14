//! Tensors as one row, summed over ranks.

use burn::tensor::FloatDType;
use flow_core::device::ComputeDevice;
use flow_core::tensors::cast;
use flow_core::{RawTensor, cpu};
use flow_exchange::{Lanes, ValueType, Values, in_process};
use flow_exchange_cube::FlatTensor;
use std::time::Duration;

const SHAPES: [&[usize]; 4] = [&[3, 5], &[7], &[0, 4], &[2, 1, 2]];

/// Values that are sensitive to the order in which they are added.
fn tensor(rank: usize, index: usize) -> RawTensor {
    let count: usize = SHAPES[index].iter().product();
    let value = |at: usize| {
        let bits = (at as u32 + 31 * index as u32 + 977 * rank as u32).wrapping_mul(2_654_435_761);
        ((bits >> 8) as f32 / 1e7 - 0.8) * 10f32.powi((bits % 7) as i32 - 3)
    };
    ComputeDevice::cpu().plain((0..count).map(value).collect(), SHAPES[index])
}

#[test]
fn tensors_come_back_as_they_were_packed_and_an_absent_one_as_minus_zero() {
    let device = ComputeDevice::cpu();
    let own: Vec<RawTensor> = [0, 2, 3].map(|index| tensor(0, index)).into();
    let given = [Some(&own[0]), None, Some(&own[1]), Some(&own[2])];
    let flat = FlatTensor::pack(&device, given.into_iter().zip(SHAPES));
    assert_eq!(flat.count(), 15 + 7 + 4);
    let unpacked = flat.unpack(SHAPES);
    for (index, (tensor, given)) in unpacked.iter().zip(given).enumerate() {
        assert_eq!(flow_core::tensors::shape(tensor), SHAPES[index]);
        let bits: Vec<u32> = cpu::to_host(tensor).iter().map(|x| x.to_bits()).collect();
        let wanted = match given {
            Some(given) => cpu::to_host(given),
            None => vec![-0.0; 7],
        };
        assert_eq!(bits, wanted.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    }
}

#[test]
fn tensors_of_sixteen_bits_are_packed_read_written_and_unpacked_without_a_change() {
    let device = ComputeDevice::cpu();
    let own = cast(&tensor(0, 0), FloatDType::BF16);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let given = [(Some(&own), SHAPES[0]), (None, SHAPES[1])];
    let mut flat = FlatTensor::pack_as(&device, ValueType::Bf16, given);
    assert_eq!((flat.value_type(), flat.count()), (ValueType::Bf16, 22));
    let read = flat.read();
    let wanted = [cpu::to_host(&own), vec![-0.0; 7]].concat();
    assert_eq!(bits(read.clone()), bits(wanted));
    flat.write(read.iter().rev().copied().collect());
    assert_eq!(flat.value_type(), ValueType::Bf16);
    assert_eq!(bits(flat.read()), bits(read.iter().rev().copied().collect()));
    flat.write(read);
    let unpacked = flat.unpack([SHAPES[0], SHAPES[1]]);
    assert_eq!(bits(cpu::to_host(&unpacked[0])), bits(cpu::to_host(&own)));
}

#[test]
fn a_sum_over_ranks_has_the_bits_of_the_tree_and_a_tensor_that_one_rank_lacks_changes_nothing() {
    let lanes = Lanes::new(4);
    // Rank 2 lacks the second tensor.
    let has = |rank: usize, index: usize| (rank, index) != (2, 1);
    let threads: Vec<_> = in_process(4, Duration::from_secs(20))
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || {
                let device = ComputeDevice::cpu();
                let rank = exchange.world().rank;
                let own: Vec<Option<RawTensor>> = (0..4)
                    .map(|index| has(rank, index).then(|| tensor(rank, index)))
                    .collect();
                let given = own.iter().map(Option::as_ref).zip(SHAPES);
                let mut flat = FlatTensor::pack(&device, given);
                let mut values: [&mut dyn Values; 1] = [&mut flat];
                exchange.sum(&lanes, &mut values).expect("everyone is there");
                flat.unpack(SHAPES).iter().map(cpu::to_host).collect::<Vec<_>>()
            })
        })
        .collect();
    let all: Vec<Vec<Vec<f32>>> = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect();
    for index in 0..4 {
        let of = |rank: usize| has(rank, index).then(|| cpu::to_host(&tensor(rank, index)));
        let add = |left: Option<Vec<f32>>, right: Option<Vec<f32>>| match (left, right) {
            (Some(left), Some(right)) => Some(left.iter().zip(&right).map(|(a, b)| a + b).collect()),
            (left, right) => left.or(right),
        };
        let wanted: Option<Vec<f32>> = add(add(of(0), of(1)), add(of(2), of(3)));
        for rank in &all {
            let bits: Vec<u32> = rank[index].iter().map(|x| x.to_bits()).collect();
            let wanted: Vec<u32> = wanted.iter().flatten().map(|x| x.to_bits()).collect();
            assert_eq!(bits, wanted, "tensor {index}");
        }
    }
}
