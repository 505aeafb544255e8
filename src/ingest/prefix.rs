//! Block ids for traces that hold token ids instead of hashes.
//!
//! The id of a full block is the 64-bit FNV-1a hash of the prompt from its first token to the block's last, each token as
//! four bytes, least significant first. So equal ids mean equal prompts up to there, in any file of the same tokeniser; a
//! last block that is not full has no id, as engines do not share it. FNV-1a is by Fowler, Noll and Vo; offset basis and
//! prime are theirs.

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The ids of the full blocks of `tokens`; `ids` is emptied first. A block size of 0 has none.
pub(super) fn prefix_ids(tokens: &[u32], block: u32, ids: &mut Vec<u64>) {
    ids.clear();
    let mut hash = OFFSET;
    for block in tokens.chunks_exact((block as usize).max(1)) {
        for byte in block.iter().flat_map(|token| token.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
        ids.push(hash);
    }
    if block == 0 {
        ids.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // The four bytes of `foob` are one token here; the authors publish 0xdd120e790c2512af for that text.
        let mut ids = Vec::new();
        prefix_ids(&[0x626f_6f66], 1, &mut ids);
        assert_eq!(ids, [0xdd12_0e79_0c25_12af]);
        prefix_ids(&[1, 2, 3], 0, &mut ids);
        assert!(ids.is_empty());
    }

    proptest! {
        /// Prompts share ids exactly as far as they share full blocks.
        #[test]
        fn ids_are_equal_as_far_as_prompts_are(
            shared in proptest::collection::vec(0_u32..200_000, 0..60),
            one in proptest::collection::vec(0_u32..200_000, 0..40),
            two in proptest::collection::vec(0_u32..200_000, 0..40),
            block in 1_u32..20,
        ) {
            let prompts = [[&shared[..], &one[..]].concat(), [&shared[..], &two[..]].concat()];
            let same = prompts[0].iter().zip(&prompts[1]).take_while(|(a, b)| a == b).count();
            let ids = prompts.each_ref().map(|prompt| {
                let mut ids = Vec::new();
                prefix_ids(prompt, block, &mut ids);
                ids
            });
            let found = ids[0].iter().zip(&ids[1]).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(found, (same / block as usize).min(ids[0].len()).min(ids[1].len()));
            prop_assert_eq!(ids[0].len(), prompts[0].len() / block as usize);
        }
    }
}
