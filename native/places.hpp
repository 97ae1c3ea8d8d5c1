// Places in arrays of scores and bounds.
#pragma once
#include "groups.hpp"

namespace coil {
namespace {

// The highest of each block of rows.
void find_highest(const std::int64_t *values, std::size_t count, std::int64_t *highest) {
    for (std::size_t block = 0; block * BLOCK < count; ++block) {
        const std::size_t begin = block * BLOCK, end = std::min(begin + BLOCK, count);
        std::int64_t best[8];
        for (int j = 0; j < 8; ++j) best[j] = values[begin];
        std::size_t i = begin;
        for (; i + 8 <= end; i += 8)
            for (std::size_t j = 0; j < 8; ++j) best[j] = values[i + j] > best[j] ? values[i + j] : best[j];
        for (; i < end; ++i) best[0] = values[i] > best[0] ? values[i] : best[0];
        for (int j = 1; j < 8; ++j) best[0] = best[j] > best[0] ? best[j] : best[0];
        highest[block] = best[0];
    }
}

// Places of scores that reach a threshold.
std::size_t find_above(const std::int64_t *scores, std::size_t count, std::int64_t threshold, std::int32_t *places) {
    std::size_t found = 0, i = 0;
#if COIL_ISA == 5
    const __m512i bound = _mm512_set1_epi64(threshold);
    for (; i + 16 <= count; i += 16) {
        const unsigned low = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(scores + i), bound);
        const unsigned high = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(scores + i + 8), bound);
        for (unsigned mask = low | high << 8; mask; mask &= mask - 1)
            places[found++] = static_cast<std::int32_t>(i) + __builtin_ctz(mask);
    }
#endif
    for (; i < count; ++i) {
        places[found] = static_cast<std::int32_t>(i);
        found += scores[i] >= threshold;
    }
    return found;
}

}  // namespace
}  // namespace coil
