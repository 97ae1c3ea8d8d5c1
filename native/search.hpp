// Top-k over segments: rows are processed in ranges whose scores stay in the cache, lists and sentence vectors are read once, and
// what provably cannot enter the top k is skipped.
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
    // By score, descending, then in order of insertion.
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
    bool without_zero = false;  // without a sentence part, a document that scores exactly 0 is not a hit
    std::int64_t at_least = INT64_MIN;  // lowest score of a hit
    int threads = 1;
    std::int64_t range_rows = 16384;  // rows whose scores are in memory at a time: 128 KiB
};

struct Result {
    std::vector<Found> found;  // best first
    Stats stats;
};

// One list of a query in one segment.
struct Part {
    const QueryToken *token = nullptr;
    std::int64_t place = 0;  // the number of the list in the segment
    List list;
    std::int64_t bound = 0;  // the most that it can add to a row
};

// The lists of a query in a segment, by descending bound.
using Parts = std::vector<Part>;
using PartsOfQueries = std::vector<std::vector<Parts>>;  // [segment][query]
using Segments = std::vector<const SegmentView *>;
using Masks = std::vector<const std::uint8_t *>;  // a byte per row of each segment (0: excluded), or nullptr
using Queries = std::vector<const Query *>;

// The part of a token in a segment; the list with this number must have been checked.
Part make_part(const SegmentView &, const Query &, const QueryToken &, std::int64_t list);

// One result for each query, unless the deadline passes.
std::vector<Result> search(const Kernels &, const Segments &, const Masks &, const Queries &, const PartsOfQueries &, const Options &,
                           Deadline &);

// The score of every row of one segment.
void score_rows(const Kernels &, const SegmentView &, const Query &, const Parts &, std::int64_t *scores);

}  // namespace coil
