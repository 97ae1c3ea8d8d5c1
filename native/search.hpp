// Top-k over segments: rows are taken in ranges whose scores stay in the cache, lists and sentence vectors are
// read once, and what provably cannot enter the top k is skipped.
#pragma once
#include <cstdint>
#include <vector>

#include "postings.hpp"
#include "threads.hpp"
#include "views.hpp"

namespace coil {

struct Found {
    std::int64_t score;
    std::int64_t ordinal;
    std::int32_t segment;
    std::int32_t row;
    // Score descending, then order of insertion.
    bool before(const Found &other) const {
        return score != other.score ? score > other.score : ordinal < other.ordinal;
    }
};

struct Stats {
    std::int64_t mentions_scored = 0, mentions_skipped = 0, sentences_scored = 0, sentences_skipped = 0;
    std::int64_t heads_scored = 0;
    void add(const Stats &other) {
        mentions_scored += other.mentions_scored;
        mentions_skipped += other.mentions_skipped;
        sentences_scored += other.sentences_scored;
        sentences_skipped += other.sentences_skipped;
        heads_scored += other.heads_scored;
    }
};

struct Options {
    std::int64_t k = 10;
    bool prune = true;
    bool without_zero = false;  // without a sentence part, a score of exactly 0 is no hit
    std::int64_t at_least = INT64_MIN;  // only scores from here on
    int threads = 1;
    std::int64_t range_rows = 16384;  // rows whose scores are kept at a time: 128 KiB
};

struct Result {
    std::vector<Found> found;  // best first
    Stats stats;
};

// One list of a query in one segment.
struct Part {
    const QueryToken *token = nullptr;
    std::int64_t place = 0;  // of the list in the segment
    List list;
    std::int64_t bound = 0;  // what it can add to a row, at most
};

// What a query finds in a segment, by descending bound.
using Parts = std::vector<Part>;
using PartsOfQueries = std::vector<std::vector<Parts>>;  // [segment][query]
using Segments = std::vector<const SegmentView *>;
using Masks = std::vector<const std::uint8_t *>;  // a byte for each row of each segment (0: does not count), or nullptr
using Queries = std::vector<const Query *>;

// The part of a token in a segment whose list with this number has been checked.
Part make_part(const SegmentView &, const Query &, const QueryToken &, std::int64_t list);

// One result for each query, unless the deadline passes.
std::vector<Result> search(const Kernels &, const Segments &, const Masks &, const Queries &, const PartsOfQueries &, const Options &,
                           Deadline &);

// The score of every row of one segment.
void score_rows(const Kernels &, const SegmentView &, const Query &, const Parts &, std::int64_t *scores);

}  // namespace coil
