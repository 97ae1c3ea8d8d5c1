// Finds positions: of scores that reach a threshold, and of rows in lists.
#pragma once
#include <algorithm>

#include "views.hpp"

namespace coil {
namespace {

// The positions of scores that reach a threshold.
template <class S>
std::size_t find_above(const std::int64_t *scores, std::size_t count, std::int64_t threshold, std::int32_t *places) {
    std::size_t found = 0, i = 0;
    for (; i + LANES <= count; i += LANES)
        for (unsigned mask = S::reach(scores + i, threshold); mask; mask &= mask - 1)
            places[found++] = static_cast<std::int32_t>(i) + __builtin_ctz(mask);
    for (; i < count; ++i) {
        places[found] = static_cast<std::int32_t>(i);
        found += scores[i] >= threshold;
    }
    return found;
}

// The rows of a list are usually spread evenly, so a guess is nearly right. 32 rows are compared at once.
template <class S>
std::size_t find_rows(const std::uint16_t *rows, std::int64_t begin, std::int64_t end, const std::int32_t *wanted, std::size_t count,
                      std::int64_t *found) {
    constexpr std::int64_t SOME = 32;
    std::size_t hits = 0;
    if (end - begin <= SOME) {
        for (std::size_t i = 0; i < count && begin < end; ++i) {
            while (begin < end && rows[begin] < wanted[i]) ++begin;
            if (begin == end || rows[begin] != wanted[i]) continue;
            found[2 * hits] = static_cast<std::int64_t>(i);
            found[2 * hits++ + 1] = begin;
        }
        return hits;
    }
    const float density = static_cast<float>(end - begin) / static_cast<float>(rows[end - 1] - rows[begin] + 1);
    std::int64_t at = begin;  // all rows before it are lower than the wanted one
    for (std::size_t i = 0; i < count; ++i) {
        const std::int32_t row = wanted[i];
        const std::int64_t ahead = static_cast<std::int64_t>(static_cast<float>(row - rows[at]) * density) - SOME / 2;
        std::int64_t guess = std::min(std::max(at + ahead, at), end - SOME);
        if (guess > at && rows[guess] > row) {
            for (std::int64_t step = SOME; guess > at && rows[guess] > row; step *= 2) guess = std::max(guess - step, at);
        }
        for (std::int64_t step = SOME; guess + SOME < end && rows[guess + SOME - 1] < row; step *= 2) {
            std::int64_t next = std::min(guess + step, end - SOME);
            while (next > guess + SOME && rows[next] > row) next = guess + (next - guess) / 2;  // too far
            guess = next;
        }
        guess = std::min(guess, end - SOME);
        at = std::min(guess + S::count_below(rows + guess, row), end - 1);
        if (rows[at] != row) continue;
        found[2 * hits] = static_cast<std::int64_t>(i);
        found[2 * hits++ + 1] = at;
    }
    return hits;
}

}  // namespace
}  // namespace coil
