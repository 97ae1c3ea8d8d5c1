// Locates the postings of a list among its mentions, by the bits of posting_starts and the blocks of long lists.
#pragma once
#include <algorithm>

#include "views.hpp"

namespace coil {

// The position of the n-th set bit, counted from 0.
inline int select_bit(std::uint64_t bits, int n) {
    for (; n > 0; --n) bits &= bits - 1;
    return __builtin_ctzll(bits);
}

// The number of set bits; not every processor has an instruction for it, and a call would cost more.
inline int count_bits(std::uint64_t bits) {
    bits -= bits >> 1 & 0x5555555555555555u;
    bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
    return static_cast<int>(((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

// The bits of a word of posting_starts that belong to mentions [begin, end).
inline std::uint64_t bits_of(const SegmentView &segment, std::int64_t word, std::int64_t begin, std::int64_t end) {
    std::uint64_t bits = segment.posting_starts[word];
    if (begin > word * 64) bits &= ~std::uint64_t{0} << (begin - word * 64);
    if (end < word * 64 + 64) bits &= (std::uint64_t{1} << (end - word * 64)) - 1;
    return bits;
}

// The position of a list among the long ones, -1 if it is short.
inline std::int64_t find_long(const SegmentView &segment, std::int64_t list) {
    const std::uint32_t *end = segment.long_lists + segment.long_count;
    const std::uint32_t *found = std::lower_bound(segment.long_lists, end, static_cast<std::uint32_t>(list));
    return found != end && *found == list ? found - segment.long_lists : -1;
}

// One list of a segment, already checked.
struct List {
    std::int64_t first = 0, last = 0;     // its postings
    std::int64_t begin = 0, end = 0;      // its mentions
    std::int64_t first_block = -1;        // among all blocks; -1 if the list is short

    List() = default;
    List(const SegmentView &segment, std::int64_t list)
        : first(segment.posting_offsets[list]),
          last(segment.posting_offsets[list + 1]),
          begin(segment.list_offsets[list]),
          end(segment.list_offsets[list + 1]) {
        if (last - first > BLOCK) first_block = segment.long_offsets[find_long(segment, list)];
    }

    // The first mention of a posting; the end of the list for the posting after the last.
    std::int64_t mention(const SegmentView &segment, std::int64_t posting) const {
        if (posting >= last) return end;
        std::int64_t from = begin, left = posting - first;
        if (first_block >= 0) {
            from = segment.block_mentions[first_block + left / BLOCK];
            left %= BLOCK;
        }
        for (std::int64_t word = from / 64;; ++word) {
            const std::uint64_t bits = bits_of(segment, word, from, end);
            const int here = count_bits(bits);
            if (left < here) return word * 64 + select_bit(bits, static_cast<int>(left));
            left -= here;
        }
    }

    // The start of the posting after the one that begins at this mention, or the end of the list.
    std::int64_t next_start(const SegmentView &segment, std::int64_t mention) const {
        for (std::int64_t word = (mention + 1) / 64; word * 64 < end; ++word) {
            const std::uint64_t bits = bits_of(segment, word, mention + 1, end);
            if (bits) return word * 64 + __builtin_ctzll(bits);
        }
        return end;
    }

    // The first posting from `from` on whose row is at least this one.
    std::int64_t posting(const SegmentView &segment, std::int64_t from, std::int64_t row) const {
        const std::uint16_t *const rows = segment.posting_rows;
        return std::lower_bound(rows + from, rows + last, row, [](std::uint16_t a, std::int64_t b) { return a < b; }) - rows;
    }

    Stretch between(const SegmentView &segment, std::int64_t from, std::int64_t to) const {
        return {from, to - from, mention(segment, from), mention(segment, to)};
    }
};

}  // namespace coil
