// Products of rows with a query vector: heads or tails of sentence vectors.
#pragma once
#include <algorithm>

#include "views.hpp"

namespace coil {
namespace {

constexpr std::int64_t ROWS_AHEAD = 96;  // prefetched into the L2 cache

// Sixteen partial sums, then added pairwise.
template <class S, class Value>
inline float float_row(const Value *values, int dim, const QueryVector &q) {
    typename S::Floats sum = S::spread(0.0f);
    int d = 0;
    for (; d + LANES <= dim; d += LANES) sum = S::add(sum, S::multiply(S::load(values + d), S::load(q.exact.data() + d)));
    if (d < dim) {
        Value few[LANES] = {};
        std::copy(values + d, values + dim, few);
        sum = S::add(sum, S::multiply(S::load(few), S::load(q.exact.data() + d)));
    }
    float sums[LANES];
    S::store(sums, sum);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

// Products of four rows, on the grid.
template <class S, int LINES>
inline void four_rows(const Vectors &rows, const std::int64_t *four, const QueryVector &q, std::int64_t *out) {
    const std::int64_t bytes = static_cast<std::int64_t>(rows.dim) * bytes_of(rows.kind);
    const std::uint8_t *at[4];
    for (int r = 0; r < 4; ++r) at[r] = rows.data + four[r] * bytes;
    if (LINES > 0 || rows.kind == Kind::int8) {
        std::int32_t sums[4];
        S::template int8_rows<LINES>(at, rows.dim, q, sums);
        for (int r = 0; r < 4; ++r) out[r] = S::to_grid(static_cast<float>(sums[r]) * (SCALES[rows.scales[four[r]]] * q.scale));
    } else if (rows.kind == Kind::fp16) {
        for (int r = 0; r < 4; ++r) out[r] = S::to_grid(float_row<S>(reinterpret_cast<const std::uint16_t *>(at[r]), rows.dim, q));
    } else {
        for (int r = 0; r < 4; ++r) out[r] = S::to_grid(float_row<S>(reinterpret_cast<const float *>(at[r]), rows.dim, q));
    }
}

inline void add(std::int64_t &score, std::int64_t part) {  // may wrap around: a damaged file may contain infinities
    score = static_cast<std::int64_t>(static_cast<std::uint64_t>(score) + static_cast<std::uint64_t>(part));
}

// Adds the products of rows `row(i)`, for i below `count`, to scores[i], four at a time.
template <class S, int LINES, class Row>
inline void add_all(const Vectors &rows, std::int64_t count, const QueryVector &q, std::int64_t *scores, std::int64_t ahead, Row row) {
    const std::int64_t bytes = static_cast<std::int64_t>(rows.dim) * bytes_of(rows.kind);
    for (std::int64_t i = 0; i < count; i += 4) {
        const std::int64_t here = std::min<std::int64_t>(4, count - i);
        std::int64_t four[4], found[4];
        for (std::int64_t r = 0; r < 4; ++r) {
            four[r] = row(i + std::min(r, here - 1));
            if (i + r + ahead < count) {
                const std::uint8_t *fetched = rows.data + row(i + r + ahead) * bytes;
                for (std::int64_t line = 0; line < bytes && line < 512; line += 64) __builtin_prefetch(fetched + line, 0, 2);
            }
        }
        four_rows<S, LINES>(rows, four, q, found);
        for (std::int64_t r = 0; r < here; ++r) add(scores[i + r], found[r]);
    }
}

template <class S, class Row>
inline void add_all(const Vectors &rows, std::int64_t count, const QueryVector &q, std::int64_t *scores, std::int64_t ahead, Row row) {
    if (rows.kind == Kind::int8 && rows.dim == 64)
        add_all<S, 1>(rows, count, q, scores, ahead, row);
    else if (rows.kind == Kind::int8 && rows.dim == 192)
        add_all<S, 3>(rows, count, q, scores, ahead, row);
    else
        add_all<S, 0>(rows, count, q, scores, ahead, row);
}

// The same for int8 rows from `begin` on, sixteen at a time, which are scaled and added together. Returns how many were added.
template <class S, int LINES>
inline std::int64_t add_sixteens(const Vectors &rows, std::int64_t begin, std::int64_t count, const QueryVector &q, std::int64_t *scores) {
    constexpr std::int64_t BYTES = 64 * LINES;
    std::int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const std::uint8_t *const first = rows.data + (begin + i) * BYTES;
        for (std::int64_t line = 0; line < LANES * LINES; ++line) __builtin_prefetch(first + ROWS_AHEAD * BYTES + 64 * line, 0, 2);
        std::int32_t sums[LANES];
        std::int64_t parts[LANES];
        for (int r = 0; r < LANES; r += 4) {
            const std::uint8_t *const row = first + r * BYTES, *const four[4] = {row, row + BYTES, row + 2 * BYTES, row + 3 * BYTES};
            S::template int8_rows<LINES>(four, 64 * LINES, q, sums + r);
        }
        S::to_grid(S::scaled(sums, rows.scales + begin + i, q.scale), parts);
        for (int r = 0; r < LANES; ++r) add(scores[i + r], parts[r]);
    }
    return i;
}

template <class S>
void add_rows(const Vectors &rows, std::int64_t begin, std::int64_t end, const QueryVector &q, std::int64_t *scores) {
    if (!rows.dim) return;
    std::int64_t done = 0;
    if (rows.kind == Kind::int8 && rows.dim == 64) done = add_sixteens<S, 1>(rows, begin, end - begin, q, scores);
    if (rows.kind == Kind::int8 && rows.dim == 192) done = add_sixteens<S, 3>(rows, begin, end - begin, q, scores);
    add_all<S>(rows, end - begin - done, q, scores + done, ROWS_AHEAD, [begin, done](std::int64_t i) { return begin + done + i; });
}

template <class S>
void pick_rows(const Vectors &rows, const std::int32_t *chosen, std::size_t count, const QueryVector &q, std::int64_t *scores) {
    if (rows.dim)
        add_all<S>(rows, static_cast<std::int64_t>(count), q, scores, 16, [chosen](std::int64_t i) { return static_cast<std::int64_t>(chosen[i]); });
}

}  // namespace
}  // namespace coil
