// Scores a stretch of one list: the best product of each posting is weighted and added to the score of its row.
#pragma once
#include <limits>

#include "groups.hpp"

namespace coil {
namespace {

// Groups are processed in waves: all products, then the best of each posting, then the sums. Each of these loops has few
// dependent values, which a processor can overlap far better than one long chain per group.
constexpr int WAVE = 16;
constexpr int AHEAD = 28;  // groups; prefetched into the L2 cache between the products, when memory would be idle

// The postings that end in a wave, in order.
struct Ended {
    alignas(64) float best[(WAVE + 2) * LANES] = {};
    alignas(64) std::uint32_t ends[(WAVE + 3) * LANES] = {};  // from LANES on; the element before is where the first posting begins
    int count = 0;
    std::uint32_t *end() { return ends + LANES; }
};

template <class S, bool PRODUCTS, bool WEIGHTED>
inline void add_ended(Ended &ended, const std::uint16_t *rows, const std::uint32_t *lengths, const Term &term, std::int64_t first_row,
                      std::int64_t *scores) {
    alignas(64) std::int64_t parts[(WAVE + 2) * LANES];
    const typename S::Floats base = S::spread(term.base), zero = S::spread(0.0f);
    for (int i = 0; i < ended.count; i += LANES) {
        typename S::Floats fit = base;
        if constexpr (PRODUCTS) fit = S::add(base, S::load(ended.best + i));
        if (term.floor) fit = S::larger(fit, zero);
        if constexpr (WEIGHTED) {
            std::uint16_t few[LANES] = {};
            const std::uint16_t *sixteen = rows + i;
            if (ended.count - i < LANES) {  // nothing after the last row is read
                std::memcpy(few, sixteen, static_cast<std::size_t>(ended.count - i) * sizeof *few);
                sixteen = few;
            }
            fit = S::multiply(S::factors(ended.end() + i, sixteen, lengths, term.saturation.c0, term.saturation.c1), fit);
        }
        S::to_grid(fit, parts + i);
    }
    asm volatile("" ::: "memory");  // read back from memory: extracting from registers is slower
    // As unsigned numbers, which may wrap around: a damaged file may contain infinities.
    std::uint64_t *const sums = reinterpret_cast<std::uint64_t *>(scores) - first_row;
    if (term.multiple == 1)
        for (int i = 0; i < ended.count; ++i) sums[rows[i]] += static_cast<std::uint64_t>(parts[i]);
    else
        for (int i = 0; i < ended.count; ++i) sums[rows[i]] += static_cast<std::uint64_t>(parts[i]) * static_cast<std::uint64_t>(term.multiple);
}

// Without products, the vectors are not read.
template <class S, bool WEIGHTED, class Products>
inline void add_stretch(const SegmentView &segment, const Stretch &stretch, const Term &term, std::int64_t first_row, std::int64_t *scores,
                        const Products &products) {
    constexpr bool PRODUCTS = !std::is_same_v<Products, std::nullptr_t>;
    constexpr float LEAST = -std::numeric_limits<float>::infinity();
    const Groups groups(segment.mentions);
    const std::int64_t first = stretch.begin / LANES, last = (stretch.end - 1) / LANES;
    const std::uint16_t *rows = segment.posting_rows + stretch.first;
    typename S::Carry carry{};
    if constexpr (PRODUCTS) carry = S::carry(LEAST);
    Ended ended;
    ended.end()[-1] = static_cast<std::uint32_t>(stretch.begin);
    alignas(64) float found[WAVE * LANES];
    if constexpr (PRODUCTS)  // prefetch all at once, not one by one as they are needed
        for (std::int64_t group = first; group <= std::min<std::int64_t>(last, first + AHEAD - 1); ++group) groups.prefetch(group);
    for (std::int64_t group = first; group <= last; group += WAVE) {
        const int here = static_cast<int>(std::min<std::int64_t>(WAVE, last + 1 - group));
        if constexpr (PRODUCTS)
            for (int g = 0; g < here; ++g) S::store(found + LANES * g, groups.with(group + g, products));
        ended.count = 0;
        for (int g = 0; g < here; ++g) {
            const std::int64_t at = group + g;
            unsigned starts = starts_of(segment.posting_starts, at);
            if constexpr (PRODUCTS) {
                if (at + AHEAD <= last) groups.prefetch(at + AHEAD);
            }
            if (at == first || at == last) {  // mask the lanes of other lists
                const unsigned lanes = lanes_within(at, stretch.begin, stretch.end);
                starts &= lanes;
                if (at == first) starts &= starts - 1;  // no posting ends where the first one begins
                if constexpr (PRODUCTS) S::store(found + LANES * g, S::only(lanes, S::load(found + LANES * g), LEAST));
            }
            if constexpr (PRODUCTS) S::end_runs(S::load(found + LANES * g), starts, carry, ended.best + ended.count);
            if constexpr (WEIGHTED) S::places(starts, static_cast<std::uint32_t>(at * LANES), ended.end() + ended.count);
            ended.count += __builtin_popcount(starts);
        }
        if (group + here > last) {
            if constexpr (PRODUCTS) ended.best[ended.count] = S::last(carry);
            ended.end()[ended.count++] = static_cast<std::uint32_t>(stretch.end);
        }
        if (!ended.count) continue;  // a posting may be longer than a wave
        add_ended<S, PRODUCTS, WEIGHTED>(ended, rows, segment.row_lengths, term, first_row, scores);
        rows += ended.count;
        ended.end()[-1] = ended.end()[ended.count - 1];
    }
}

template <class S>
void add_list(const SegmentView &segment, const Stretch &stretch, const Term &term, std::int64_t first_row, std::int64_t *scores) {
    if (!stretch.count) return;
    const auto run = [&](const auto &products) {
        if (term.saturation.weighted)
            add_stretch<S, true>(segment, stretch, term, first_row, scores, products);
        else
            add_stretch<S, false>(segment, stretch, term, first_row, scores, products);
    };
    if (term.vector == nullptr)
        run(nullptr);
    else
        with_products<S>(segment.mentions, *term.vector, run);
}

// Scattered postings: each costs a whole group, so the groups of the next ones are prefetched.
template <class S>
void best_products(const Vectors &vectors, const std::int64_t *runs, std::size_t count, const QueryVector &q, float *best) {
    constexpr float LEAST = -std::numeric_limits<float>::infinity();
    const Groups groups(vectors);
    with_products<S>(vectors, q, [&](const auto &products) {
        for (std::size_t i = 0; i < count; ++i) {
            if (i + 4 < count) groups.prefetch(runs[2 * i + 8] / LANES);
            const std::int64_t begin = runs[2 * i], end = runs[2 * i + 1];
            typename S::Floats most = S::spread(LEAST);
            for (std::int64_t group = begin / LANES; group * LANES < end; ++group)
                most = S::larger(most, S::only(lanes_within(group, begin, end), groups.with(group, products), LEAST));
            best[i] = S::largest(most);
        }
    });
}

}  // namespace
}  // namespace coil
