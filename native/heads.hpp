// Finds the rows that can still be hits, by the heads of their sentence vectors and the lengths of their tails.
#pragma once
#include "rows.hpp"

namespace coil {
namespace {

// The products of four heads, not on the grid.
template <class S>
inline void four_heads(const Vectors &heads, const std::int64_t *four, const QueryVector &q, float *out) {
    const std::int64_t bytes = static_cast<std::int64_t>(heads.dim) * bytes_of(heads.kind);
    const std::uint8_t *at[4];
    for (int r = 0; r < 4; ++r) at[r] = heads.data + four[r] * bytes;
    if (heads.kind == Kind::int8) {
        std::int32_t sums[4];
        if (heads.dim == HEAD)
            S::template int8_rows<1>(at, HEAD, q, sums);
        else
            S::template int8_rows<0>(at, heads.dim, q, sums);
        for (int r = 0; r < 4; ++r) out[r] = static_cast<float>(sums[r]) * (SCALES[heads.scales[four[r]]] * q.scale);
    } else if (heads.kind == Kind::fp16) {
        for (int r = 0; r < 4; ++r) out[r] = float_row<S>(reinterpret_cast<const std::uint16_t *>(at[r]), heads.dim, q);
    } else {
        for (int r = 0; r < 4; ++r) out[r] = float_row<S>(reinterpret_cast<const float *>(at[r]), heads.dim, q);
    }
}

// The head of a row is read only if its score plus the longest sentence vector could reach the needed score.
template <class S>
std::size_t find_open(const SegmentView &segment, std::int64_t begin, std::int64_t end, const HeadQuery &query, const std::int64_t *scores,
                      std::int32_t *places, std::int64_t *looked_at) {
    constexpr float LITTLE = 1e-6f;  // more than the rounding errors of the sums below
    const bool plain = segment.heads.kind == Kind::int8 && segment.heads.dim == HEAD;
    std::size_t found = 0;
    for (std::int64_t first = begin; first < end; first += LANES) {
        const int lanes = static_cast<int>(std::min<std::int64_t>(LANES, end - first));
        std::int64_t padded[LANES] = {};
        std::uint8_t norms[LANES] = {};
        const std::int64_t *sixteen = scores + (first - begin);
        const std::uint8_t *tails = segment.tail_norms + first;
        if (lanes < LANES) {
            std::copy(sixteen, sixteen + lanes, padded);
            std::copy(tails, tails + lanes, norms);
            sixteen = padded;
            tails = norms;
        }
        for (int ahead = 0; ahead < LANES; ++ahead)
            __builtin_prefetch(segment.heads.data + (first + ROWS_AHEAD + ahead) * segment.heads.dim * bytes_of(segment.heads.kind), 0, 2);
        const typename S::Floats score = S::from_grid(sixteen);
        const unsigned all = (1u << lanes) - 1;
        unsigned open = S::reach(S::add(score, S::multiply(S::size(score), S::spread(LITTLE))), query.needed - query.longest) & all;
        if (!open) continue;
        *looked_at += __builtin_popcount(open);
        float products[LANES] = {};
        unsigned left = open;
        if (left == 0xffffu && plain) {
            std::int32_t sums[LANES];
            for (int r = 0; r < LANES; r += 4) {
                const std::uint8_t *const row = segment.heads.data + (first + r) * HEAD, *const four[4] = {row, row + HEAD, row + 2 * HEAD, row + 3 * HEAD};
                S::template int8_rows<1>(four, HEAD, query.head, sums + r);
            }
            S::store(products, S::scaled(sums, segment.heads.scales + first, query.head.scale));
            left = 0;
        }
        while (left) {
            int lane[4];
            std::int64_t four[4];
            for (int r = 0; r < 4; ++r) {
                lane[r] = left ? __builtin_ctz(left) : lane[0];
                four[r] = first + lane[r];
                left &= left - 1;
            }
            float out[4];
            four_heads<S>(segment.heads, four, query.head, out);
            for (int r = 0; r < 4; ++r) products[lane[r]] = out[r];
        }
        const typename S::Floats product = S::load(products), tail = S::multiply(S::bytes(tails), S::spread(query.tail_step));
        const typename S::Floats rounding = S::multiply(S::add(S::size(score), S::add(S::size(product), tail)), S::spread(LITTLE));
        const typename S::Floats most = S::add(S::add(score, product), S::add(tail, rounding));
        for (open &= S::reach(most, query.needed); open; open &= open - 1)
            places[found++] = static_cast<std::int32_t>(first - begin) + __builtin_ctz(open);
    }
    return found;
}

}  // namespace
}  // namespace coil
