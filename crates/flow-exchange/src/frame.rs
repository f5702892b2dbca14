//! What ranks send each other.

use crate::values::ValueType;
use std::io::{self, Read, Write};

/// What a frame is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Small data for everyone.
    Gather,
    /// Parts of a sum, of the receiver's portion of values.
    Portion,
    /// The total of the sender's portion.
    Total,
    /// Values of one rank.
    Broadcast,
    /// The sender stops; whose words these are, and the words.
    Stop,
    /// The sender ends its run in order.
    Farewell,
    /// The sender's part of one row of all.
    Share,
    /// Values of one rank for another one.
    Transfer,
}

const KINDS: [Kind; 8] = [
    Kind::Gather,
    Kind::Portion,
    Kind::Total,
    Kind::Broadcast,
    Kind::Stop,
    Kind::Farewell,
    Kind::Share,
    Kind::Transfer,
];

impl Kind {
    /// In words, after "to".
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Gather => "say how it stands",
            Self::Portion => "send its gradients",
            Self::Total => "send its sums of gradients",
            Self::Broadcast => "send its values",
            Self::Stop => "stop",
            Self::Farewell => "end",
            Self::Share => "send its part of the values",
            Self::Transfer => "send values that it alone has",
        }
    }
}

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub kind: Kind,
    /// Of the exchange, counted by each rank.
    pub number: u64,
    pub bytes: Vec<u8>,
}

/// More than any model's gradients; what announces more is no rank of ours.
const LONGEST: u64 = 1 << 40;

impl Frame {
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut head = [0; 17];
        head[0] = self.kind as u8;
        head[1..9].copy_from_slice(&self.number.to_le_bytes());
        head[9..].copy_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        to.write_all(&head)?;
        to.write_all(&self.bytes)
    }

    pub(crate) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 17];
        from.read_exact(&mut head)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (number, length) = (word(1), word(9));
        let kind = KINDS.get(usize::from(head[0]));
        let (Some(kind), true) = (kind, length <= LONGEST) else {
            return Err(io::Error::other("it sends what no rank sends"));
        };
        let mut bytes = vec![0; length as usize];
        from.read_exact(&mut bytes)?;
        Ok(Self {
            kind: *kind,
            number,
            bytes,
        })
    }
}

/// Values of a type as its bytes, little end first.
pub(crate) fn to_bytes<'a>(values: impl IntoIterator<Item = &'a f32>, of: ValueType) -> Vec<u8> {
    let values = values.into_iter();
    match of {
        ValueType::F32 => values.flat_map(|value| value.to_le_bytes()).collect(),
        // The lower half of each is zero.
        ValueType::Bf16 => values
            .flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes())
            .collect(),
    }
}

/// Bytes as values of a type.
pub(crate) fn to_values(bytes: &[u8], of: ValueType) -> Vec<f32> {
    match of {
        ValueType::F32 => {
            let words = bytes.as_chunks::<4>().0;
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
        ValueType::Bf16 => {
            let halves = bytes.as_chunks::<2>().0.iter();
            let widened = halves.map(|half| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16));
            widened.collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{to_bytes, to_values};
    use crate::values::ValueType;

    #[test]
    fn every_value_of_sixteen_bits_travels_in_two_bytes_and_comes_back_bit_by_bit() {
        let values: Vec<f32> = (0..=u16::MAX)
            .map(|upper| f32::from_bits(u32::from(upper) << 16))
            .collect();
        for (of, width) in [(ValueType::Bf16, 2), (ValueType::F32, 4)] {
            assert_eq!(of.bytes(), width);
            let bytes = to_bytes(&values, of);
            assert_eq!(bytes.len(), width * values.len());
            let back = to_values(&bytes, of);
            let same = |(one, other): (&f32, &f32)| one.to_bits() == other.to_bits();
            assert!(back.len() == values.len() && back.iter().zip(&values).all(same));
        }
    }
}
