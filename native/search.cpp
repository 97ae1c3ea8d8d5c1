#include "search.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

namespace coil {
namespace {

constexpr std::int64_t FIRST_RANGES = 8;  // the first ranges are this much smaller: a threshold is known early
constexpr std::int64_t WORTH_A_THREAD = 32768;  // rows
constexpr std::int64_t PIECE = 4096;       // mentions that stay in the cache while the queries of a batch share them
constexpr std::int64_t ROWS_PIECE = 1024;
constexpr std::int64_t NONE = std::numeric_limits<std::int64_t>::min();

struct Range {
    int segment;
    std::int64_t begin, end;
};

// Ranges never part the rows of one document.
std::vector<Range> cut(const std::vector<const SegmentView *> &segments, const Options &options) {
    std::vector<Range> ranges;
    const std::int64_t most = options.range_rows;
    std::int64_t size = std::max<std::int64_t>(most / FIRST_RANGES, 1);
    for (std::size_t s = 0; s < segments.size(); ++s) {
        const SegmentView &segment = *segments[s];
        for (std::int64_t begin = 0; begin < segment.rows;) {
            std::int64_t end = std::min(begin + size, segment.rows);
            while (end < segment.rows && segment.row_documents[end] == segment.row_documents[end - 1]) ++end;
            ranges.push_back({static_cast<int>(s), begin, end});
            begin = end;
            if (!options.prune) size = most;
            if (ranges.size() % 2 == 0) size = std::min(size * 2, most);
        }
    }
    return ranges;
}

// A bound as a whole number on the grid, rounded up with room for the rounding of a product of MOST_DIM terms.
std::int64_t bound_of(double value) {
    const double raised = std::max(value, 0.0) * (1.0 + 2e-4) * 4294967296.0 + 2.0;
    return raised < 4e18 ? static_cast<std::int64_t>(raised) : static_cast<std::int64_t>(4e18);
}

std::int64_t plus(std::int64_t a, std::int64_t b) {
    std::int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return std::numeric_limits<std::int64_t>::max();
    return sum;
}

// The k best found so far. What it needs is known to all threads as `threshold`.
class TopK {
  public:
    TopK(std::int64_t k, std::int64_t at_least) : k_(static_cast<std::size_t>(k)), threshold_(at_least) {}

    std::int64_t threshold() const { return threshold_.load(std::memory_order_relaxed); }

    void add(std::vector<Found> &candidates) {
        const auto better = [](const Found &a, const Found &b) { return a.before(b); };
        if (candidates.size() > k_) {  // most of a first range need not wait for the lock
            std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k_), candidates.end(), better);
            candidates.resize(k_);
        }
        const std::lock_guard<std::mutex> guard(lock_);
        for (const Found &found : candidates) {
            if (heap_.size() < k_) {
                heap_.push_back(found);
                std::push_heap(heap_.begin(), heap_.end(), better);
            } else if (found.before(heap_.front())) {
                std::pop_heap(heap_.begin(), heap_.end(), better);
                heap_.back() = found;
                std::push_heap(heap_.begin(), heap_.end(), better);
            }
        }
        if (heap_.size() == k_) threshold_.store(std::max(threshold(), heap_.front().score), std::memory_order_relaxed);
    }

    std::vector<Found> sorted() {
        std::sort(heap_.begin(), heap_.end(), [](const Found &a, const Found &b) { return a.before(b); });
        return std::move(heap_);
    }

  private:
    std::size_t k_;
    std::atomic<std::int64_t> threshold_;
    std::mutex lock_;
    std::vector<Found> heap_;  // its front is the worst of the k best
};

// One list of a query in one segment.
struct Part {
    const QueryToken *token = nullptr;
    std::int64_t list = -1;           // place in list_ids, -1: nobody mentions it
    std::int64_t begin = 0, end = 0;  // mentions
    std::int64_t bound = 0;
};

std::int64_t find_list(const SegmentView &segment, std::int32_t list) {
    const std::int32_t *end = segment.list_ids + segment.lists;
    const std::int32_t *found = std::lower_bound(segment.list_ids, end, list);
    return found != end && *found == list ? found - segment.list_ids : -1;
}

std::vector<Part> parts_of(const SegmentView &segment, const Query &query) {
    std::vector<Part> parts;
    for (const QueryToken &token : query.tokens) {
        const std::int64_t list = find_list(segment, token.list);
        if (list < 0) continue;
        Part part{&token, list, segment.list_offsets[list], segment.list_offsets[list + 1], 0};
        if (segment.list_norms != nullptr)
            part.bound = bound_of(static_cast<double>(token.vector.norm) * segment.list_norms[list]);
        parts.push_back(part);
    }
    // The most promising list first. Sums have no order, so the scores do not depend on this.
    std::stable_sort(parts.begin(), parts.end(), [](const Part &a, const Part &b) { return a.bound > b.bound; });
    return parts;
}

// The mentions of a list that belong to rows [begin, end).
std::pair<std::int64_t, std::int64_t> within(const SegmentView &segment, const Part &part, const Range &range) {
    if (range.begin == 0 && range.end == segment.rows) return {part.begin, part.end};
    const std::uint16_t *rows = segment.mention_rows;
    const auto *from = std::lower_bound(rows + part.begin, rows + part.end, range.begin,
                                        [](std::uint16_t row, std::int64_t value) { return row < value; });
    const auto *to = std::lower_bound(from, rows + part.end, range.end,
                                      [](std::uint16_t row, std::int64_t value) { return row < value; });
    return {from - rows, to - rows};
}

// The work on one range, with its memory, for one thread.
class RangeScorer {
  public:
    RangeScorer(const Kernels &kernels, const Options &options) : kernels_(kernels), options_(options) {}

    // All of it: the lists in pieces that every query of the batch uses while they are in the cache.
    void exhaust(const SegmentView &segment, const Range &range, const std::vector<const Query *> &queries,
                 const std::vector<std::vector<Part>> &parts, std::vector<Stats> &stats) {
        const std::int64_t rows = range.end - range.begin;
        scores_.assign(static_cast<std::size_t>(rows) * queries.size(), 0);
        struct Use { std::size_t query; const Part *part; };
        std::vector<Use> uses;
        for (std::size_t q = 0; q < queries.size(); ++q)
            for (const Part &part : parts[q]) uses.push_back({q, &part});
        std::stable_sort(uses.begin(), uses.end(), [](const Use &a, const Use &b) { return a.part->list < b.part->list; });
        std::vector<ScanState> states;
        for (std::size_t first = 0; first < uses.size();) {
            std::size_t last = first;
            while (last < uses.size() && uses[last].part->list == uses[first].part->list) ++last;
            const auto [begin, end] = within(segment, *uses[first].part, range);
            states.assign(last - first, ScanState{});
            const std::int64_t step = last - first > 1 ? PIECE : std::max<std::int64_t>(end - begin, 1);
            for (std::int64_t at = begin; at < end; at += step)
                for (std::size_t u = first; u < last; ++u)
                    kernels_.scan(segment.mentions, segment.mention_rows, at, std::min(at + step, end),
                                  uses[u].part->token->vector, options_.floor, static_cast<std::int32_t>(range.begin),
                                  scores_.data() + static_cast<std::int64_t>(uses[u].query) * rows, states[u - first]);
            for (std::size_t u = first; u < last; ++u) {
                kernels_.flush(states[u - first], static_cast<std::int32_t>(range.begin),
                               scores_.data() + static_cast<std::int64_t>(uses[u].query) * rows);
                stats[uses[u].query].mentions_scored += end - begin;
            }
            first = last;
        }
        const std::int64_t step = queries.size() > 1 ? ROWS_PIECE : std::max<std::int64_t>(rows, 1);
        for (std::int64_t at = range.begin; at < range.end; at += step)
            for (std::size_t q = 0; q < queries.size(); ++q) {
                if (!queries[q]->sentence.dim || !segment.sentences.dim) continue;
                const std::int64_t to = std::min(at + step, range.end);
                kernels_.add_rows(segment.sentences, at, to, queries[q]->sentence,
                                  scores_.data() + static_cast<std::int64_t>(q) * rows + (at - range.begin));
                stats[q].sentences_scored += to - at;
            }
        whole_ = true;
    }

    // One query, leaving out what cannot reach the threshold.
    void prune(const SegmentView &segment, const Range &range, const Query &query, const std::vector<Part> &parts,
               const TopK &top, Stats &stats) {
        const std::int64_t rows = range.end - range.begin;
        scores_.assign(static_cast<std::size_t>(rows), 0);
        const bool dense = query.sentence.dim > 0 && segment.sentences.dim > 0;
        std::int64_t sentence = 0;
        if (dense) {
            float longest = 0.0f;
            for (std::int64_t block = range.begin / BLOCK; block * BLOCK < range.end; ++block)
                longest = std::max(longest, segment.sentence_norms[block]);
            sentence = bound_of(static_cast<double>(query.sentence.norm) * longest);
        }
        std::int64_t rest = sentence;  // what lists and sentence still to come can add
        for (const Part &part : parts) rest = plus(rest, part.bound);
        bool touched = false;
        for (const Part &part : parts) {
            rest -= part.bound;
            const auto [begin, end] = within(segment, part, range);
            if (begin == end) continue;
            const std::int64_t threshold = top.threshold();
            if (threshold == NONE || rest >= threshold || end - begin < 2 * BLOCK) {
                ScanState state;
                kernels_.scan(segment.mentions, segment.mention_rows, begin, end, part.token->vector, options_.floor,
                              static_cast<std::int32_t>(range.begin), scores_.data(), state);
                kernels_.flush(state, static_cast<std::int32_t>(range.begin), scores_.data());
                stats.mentions_scored += end - begin;
            } else {
                scan_blocks(segment, range, part, begin, end, rest, threshold, touched, stats);
            }
            touched = true;
        }
        whole_ = !dense;
        if (dense) add_sentences(segment, range, query.sentence, sentence, top.threshold(), stats);
    }

    // The candidates of the range: a document scores what its best row scores.
    void collect(const SegmentView &segment, const Range &range, std::size_t query, const std::uint8_t *mask,
                 std::int64_t threshold, std::vector<Found> &candidates) {
        const std::int64_t rows = range.end - range.begin;
        const std::int64_t *scores = scores_.data() + static_cast<std::int64_t>(query) * rows;
        candidates.clear();
        chosen_.resize(static_cast<std::size_t>(rows) + 1);
        const std::size_t above = kernels_.find_above(scores, static_cast<std::size_t>(rows), threshold, chosen_.data());
        for (std::size_t i = 0; i < above; ++i) {
            const std::int64_t row = chosen_[i], score = scores[row];
            if (!whole_ && !complete_[static_cast<std::size_t>(row)]) continue;
            const std::int64_t ordinal = segment.row_documents[range.begin + row];
            if (options_.without_zero && score == 0 && alone(segment, range.begin + row)) continue;
            if (mask != nullptr && !mask[range.begin + row]) continue;
            if (!candidates.empty() && candidates.back().ordinal == ordinal) {
                if (score > candidates.back().score) {
                    candidates.back().score = score;
                    candidates.back().row = static_cast<std::int32_t>(range.begin + row);
                }
                continue;
            }
            candidates.push_back({score, ordinal, range.segment, static_cast<std::int32_t>(range.begin + row)});
        }
        if (options_.without_zero)  // of a document, not of one of its rows
            candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [](const Found &f) { return f.score == 0; }),
                             candidates.end());
    }

  private:
    // Whether a row is all there is of its document.
    static bool alone(const SegmentView &segment, std::int64_t row) {
        const std::int64_t ordinal = segment.row_documents[row];
        return (row == 0 || segment.row_documents[row - 1] != ordinal) &&
               (row + 1 == segment.rows || segment.row_documents[row + 1] != ordinal);
    }

    // A list block by block. A row may have mentions in two blocks of which one is skipped: then either its best
    // mention is in the other, or it cannot reach the threshold.
    void scan_blocks(const SegmentView &segment, const Range &range, const Part &part, std::int64_t begin, std::int64_t end,
                     std::int64_t rest, std::int64_t threshold, bool touched, Stats &stats) {
        if (touched) find_highest(range.end - range.begin);
        const float *norms = nullptr;
        if (segment.block_offsets[part.list + 1] > segment.block_offsets[part.list])
            norms = segment.block_norms + segment.block_offsets[part.list];
        ScanState state;
        std::int64_t pending = -1;  // blocks to scan are joined to one call
        for (std::int64_t at = begin; at < end;) {
            const std::int64_t block = (at - part.begin) / BLOCK;
            const std::int64_t to = std::min(part.begin + (block + 1) * BLOCK, end);
            std::int64_t bound = part.bound;
            if (norms != nullptr) bound = std::min(bound, bound_of(static_cast<double>(part.token->vector.norm) * norms[block]));
            std::int64_t highest = 0;
            if (touched) {
                const std::int64_t from = (segment.mention_rows[at] - range.begin) / BLOCK;
                const std::int64_t last = (segment.mention_rows[to - 1] - range.begin) / BLOCK;
                for (std::int64_t b = from; b <= last; ++b) highest = std::max(highest, highest_[static_cast<std::size_t>(b)]);
            }
            const bool skip = plus(plus(highest, bound), rest) < threshold;
            if (!skip && pending < 0) pending = at;
            if (pending >= 0 && (skip || to == end)) {
                const std::int64_t stop = skip ? at : to;
                kernels_.scan(segment.mentions, segment.mention_rows, pending, stop, part.token->vector, options_.floor,
                              static_cast<std::int32_t>(range.begin), scores_.data(), state);
                stats.mentions_scored += stop - pending;
                pending = -1;
            }
            if (skip) {
                stats.mentions_skipped += to - at;
                // Across a skipped block, only the row on its far side may go on.
                if (state.row != segment.mention_rows[to - 1])
                    kernels_.flush(state, static_cast<std::int32_t>(range.begin), scores_.data());
            }
            at = to;
        }
        kernels_.flush(state, static_cast<std::int32_t>(range.begin), scores_.data());
    }

    void find_highest(std::int64_t rows) {
        highest_.assign(static_cast<std::size_t>((rows + BLOCK - 1) / BLOCK), 0);
        for (std::size_t block = 0; block < highest_.size(); ++block) {
            const std::int64_t *from = scores_.data() + block * BLOCK;
            const std::int64_t count = std::min<std::int64_t>(BLOCK, rows - static_cast<std::int64_t>(block) * BLOCK);
            std::int64_t highest = 0;
            for (std::int64_t i = 0; i < count; ++i) highest = std::max(highest, from[i]);
            highest_[block] = highest;
        }
    }

    // Sentence products only for rows that can still reach the threshold: first by the length of the vectors, then,
    // where many are left, by their sketches.
    void add_sentences(const SegmentView &segment, const Range &range, const QueryVector &q, std::int64_t bound,
                       std::int64_t threshold, Stats &stats) {
        const std::int64_t rows = range.end - range.begin;
        complete_.assign(static_cast<std::size_t>(rows), 1);
        chosen_.clear();
        if (threshold == NONE) {
            kernels_.add_rows(segment.sentences, range.begin, range.end, q, scores_.data());
            stats.sentences_scored += rows;
            return;
        }
        const std::int64_t needed = threshold - bound;  // of the lists, to reach the threshold
        chosen_.resize(static_cast<std::size_t>(rows) + 1);
        const std::size_t left = kernels_.find_above(scores_.data(), static_cast<std::size_t>(rows), needed, chosen_.data());
        chosen_.resize(left);
        for (std::int32_t &row : chosen_) row += static_cast<std::int32_t>(range.begin);
        const bool many = left * 8 > static_cast<std::size_t>(rows);
        if (many && segment.sketches != nullptr && --sketch_waits_ < 0) {
            products_.resize(left);
            kernels_.sketch(segment.sketches, segment.sketch_width, chosen_.data(), left, q, products_.data());
            stats.sketches_scored += static_cast<std::int64_t>(left);
            std::size_t kept = 0;
            for (std::size_t i = 0; i < left; ++i) {
                const std::int32_t row = chosen_[i];
                const double product = static_cast<double>(products_[i]) * q.scale * SCALES[segment.sketch_scales[row]];
                // The sketch is off by this much, the query's codes by that, and the product itself is rounded.
                const double length = segment.sentence_norms[row / BLOCK];
                const double error = static_cast<double>(q.norm) * (SCALES[segment.sketch_errors[row]] + 2e-4 * length) +
                                     static_cast<double>(q.code_error) * length;
                const std::int64_t reach = static_cast<std::int64_t>((product + error) * 4294967296.0) + 2;
                if (plus(scores_[static_cast<std::size_t>(row - range.begin)], reach) >= threshold) chosen_[kept++] = row;
            }
            sketch_waits_ = kept * 5 < left * 2 ? 0 : 3;  // where it does not pay, ask again after a few ranges
            chosen_.resize(kept);
        }
        if (chosen_.size() * 3 > static_cast<std::size_t>(rows) * 2) {  // reading all of them is quicker
            kernels_.add_rows(segment.sentences, range.begin, range.end, q, scores_.data());
            stats.sentences_scored += rows;
            return;
        }
        std::fill(complete_.begin(), complete_.end(), 0);
        for (const std::int32_t row : chosen_) complete_[static_cast<std::size_t>(row - range.begin)] = 1;
        kernels_.pick_rows(segment.sentences, chosen_.data(), chosen_.size(), q, static_cast<std::int32_t>(range.begin),
                           scores_.data());
        stats.sentences_scored += static_cast<std::int64_t>(chosen_.size());
        stats.sentences_skipped += rows - static_cast<std::int64_t>(chosen_.size());
    }

    const Kernels &kernels_;
    const Options &options_;
    std::vector<std::int64_t> scores_, highest_;
    std::vector<std::uint8_t> complete_;
    std::vector<std::int32_t> chosen_, products_;
    bool whole_ = true;
    int sketch_waits_ = 0;
};

}  // namespace

void score_rows(const Kernels &kernels, const SegmentView &segment, const Query &query, bool floor, std::int64_t *scores) {
    std::fill(scores, scores + segment.rows, 0);
    for (const Part &part : parts_of(segment, query)) {
        ScanState state;
        kernels.scan(segment.mentions, segment.mention_rows, part.begin, part.end, part.token->vector, floor, 0, scores, state);
        kernels.flush(state, 0, scores);
    }
    if (query.sentence.dim && segment.sentences.dim)
        kernels.add_rows(segment.sentences, 0, segment.rows, query.sentence, scores);
}

bool search(const Kernels &kernels, const std::vector<const SegmentView *> &segments,
            const std::vector<const std::uint8_t *> &masks, const std::vector<Query> &queries, const Options &options,
            std::vector<Result> &results) {
    results.assign(queries.size(), Result{});
    if (options.k <= 0 || queries.empty()) return true;
    const std::vector<Range> ranges = cut(segments, options);
    std::vector<std::unique_ptr<TopK>> tops;
    for (std::size_t q = 0; q < queries.size(); ++q) tops.push_back(std::make_unique<TopK>(options.k, options.at_least));
    // [segment][query] looked up once, used by every range of the segment.
    std::vector<std::vector<std::vector<Part>>> parts(segments.size());
    for (std::size_t s = 0; s < segments.size(); ++s)
        for (const Query &query : queries) parts[s].push_back(parts_of(*segments[s], query));
    std::vector<const Query *> together;
    for (const Query &query : queries) together.push_back(&query);

    std::atomic<std::size_t> next{0};
    std::atomic<bool> late{false};
    std::mutex adding;
    const auto began = std::chrono::steady_clock::now();
    const auto work = [&] {
        RangeScorer scorer(kernels, options);
        std::vector<Stats> stats(queries.size());
        std::vector<Found> candidates;
        for (std::size_t r = next++; r < ranges.size() && !late; r = next++) {
            if (options.seconds > 0.0 &&
                std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > options.seconds) {
                late = true;
                break;
            }
            const Range &range = ranges[r];
            const SegmentView &segment = *segments[static_cast<std::size_t>(range.segment)];
            const auto &of_segment = parts[static_cast<std::size_t>(range.segment)];
            const std::uint8_t *mask = masks[static_cast<std::size_t>(range.segment)];
            if (!options.prune) scorer.exhaust(segment, range, together, of_segment, stats);
            for (std::size_t q = 0; q < queries.size(); ++q) {
                if (options.prune) scorer.prune(segment, range, queries[q], of_segment[q], *tops[q], stats[q]);
                scorer.collect(segment, range, options.prune ? 0 : q, mask, tops[q]->threshold(), candidates);
                tops[q]->add(candidates);
            }
        }
        const std::lock_guard<std::mutex> guard(adding);
        for (std::size_t q = 0; q < queries.size(); ++q) results[q].stats.add(stats[q]);
    };
    std::int64_t rows = 0;  // a thread is worth its start from some tens of thousands of rows on
    for (const SegmentView *segment : segments) rows += segment->rows;
    const std::int64_t useful = 1 + rows * static_cast<std::int64_t>(options.prune ? 1 : queries.size()) / WORTH_A_THREAD;
    const int threads = static_cast<int>(std::min<std::int64_t>(std::max(options.threads, 1), useful));
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work);
    work();
    for (std::thread &other : others) other.join();
    for (std::size_t q = 0; q < queries.size(); ++q) results[q].found = tops[q]->sorted();
    return !late;
}

}  // namespace coil
