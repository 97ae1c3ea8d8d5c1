#include "search.hpp"

#include <memory>

#include "pruning.hpp"

namespace coil {
namespace {

constexpr std::int64_t PIECE = 4096;  // mentions that stay in the cache while the queries of a batch share them
constexpr std::int64_t ROWS_PIECE = 1024;
constexpr std::int64_t WORTH_A_THREAD = 32768;  // rows
constexpr std::int64_t WINDOW = 1 << 20;        // rows whose list scores are kept between the passes of pruning

using PartsOfQueries = std::vector<std::vector<std::vector<Part>>>;  // [segment][query]

// Everything is scored: the lists in pieces that every query of the batch uses while they are in the cache.
class Exhauster {  // for one thread
  public:
    Exhauster(const Kernels &kernels, const Options &options, const Queries &queries, Deadline &deadline)
        : kernels_(kernels), options_(options), queries_(queries), watch_(deadline), stats(queries.size()) {}

    // False when the time is over.
    bool score(const SegmentView &segment, const Range &range, const std::vector<std::vector<Part>> &parts) {
        const std::int64_t rows = range.end - range.begin;
        const std::int64_t count = rows * static_cast<std::int64_t>(queries_.size());
        scores_ = room_.of(count);
        std::fill(scores_, scores_ + count, 0);
        struct Use {
            std::size_t query;
            const Part *part;
        };
        std::vector<Use> uses;
        for (std::size_t q = 0; q < queries_.size(); ++q)
            for (const Part &part : parts[q]) uses.push_back({q, &part});
        std::stable_sort(uses.begin(), uses.end(), [](const Use &a, const Use &b) { return a.part->list < b.part->list; });
        std::vector<ScanState> states;
        for (std::size_t first = 0; first < uses.size();) {
            std::size_t last = first;
            while (last < uses.size() && uses[last].part->list == uses[first].part->list) ++last;
            const auto [begin, end] = uses[first].part->within(range);
            states.assign(last - first, ScanState{});
            const std::int64_t step = last - first > 1 ? PIECE : std::max<std::int64_t>(end - begin, 1);
            for (std::int64_t at = begin; at < end; at += step)
                for (std::size_t u = first; u < last; ++u)
                    if (!scan(kernels_, segment, at, std::min(at + step, end), uses[u].part->token->vector,
                              queries_[uses[u].query]->floor, range.begin, of_query(uses[u].query, rows), states[u - first], watch_))
                        return false;
            for (std::size_t u = first; u < last; ++u) {
                kernels_.flush(states[u - first], static_cast<std::int32_t>(range.begin), of_query(uses[u].query, rows));
                stats[uses[u].query].mentions_scored += end - begin;
            }
            first = last;
        }
        const std::int64_t step = queries_.size() > 1 ? ROWS_PIECE : step_of(segment.sentences);
        for (std::int64_t at = range.begin; at < range.end; at += step)
            for (std::size_t q = 0; q < queries_.size(); ++q) {
                if (!queries_[q]->sentence.dim || !segment.sentences.dim) continue;
                const std::int64_t to = std::min(at + step, range.end);
                kernels_.add_rows(segment.sentences, at, to, queries_[q]->sentence, of_query(q, rows) + (at - range.begin));
                stats[q].sentences_scored += to - at;
                if (watch_.is_late(bytes_of(segment.sentences, to - at))) return false;
            }
        return true;
    }

    void collect(const SegmentView &segment, const Range &range, std::size_t query, const std::uint8_t *mask, TopK &top) {
        const std::int64_t rows = range.end - range.begin;
        const std::int64_t *scores = of_query(query, rows);
        places_.resize(static_cast<std::size_t>(rows) + 16);
        const std::size_t above = kernels_.find_above(scores, static_cast<std::size_t>(rows), top.threshold(), places_.data());
        candidates_.clear();
        for (std::size_t i = 0; i < above; ++i) {
            if (i + 16 < above) __builtin_prefetch(segment.row_documents + range.begin + places_[i + 16]);
            const std::int64_t row = range.begin + places_[i], score = scores[places_[i]];
            if (options_.without_zero && score == 0 && alone(segment, row)) continue;
            if (mask == nullptr || mask[row]) add_candidate(segment, range, row, score, candidates_);
        }
        if (options_.without_zero) drop_zeros(candidates_);
        if (!candidates_.empty()) top.add(candidates_);
    }

  private:
    std::int64_t *of_query(std::size_t query, std::int64_t rows) {
        return scores_ + static_cast<std::int64_t>(query) * rows;
    }

    const Kernels &kernels_;
    const Options &options_;
    const Queries &queries_;
    Watch watch_;
    Room room_;
    std::int64_t *scores_ = nullptr;  // [queries, rows of the range]
    std::vector<std::int32_t> places_;
    std::vector<Found> candidates_;

  public:
    std::vector<Stats> stats;
};

void search_all(const Kernels &kernels, const Segments &segments, const Masks &masks, const Queries &queries,
                const PartsOfQueries &parts, const std::vector<Range> &ranges, int threads, const Options &options,
                Deadline &deadline, std::vector<std::unique_ptr<TopK>> &tops, std::vector<Result> &results) {
    std::atomic<std::size_t> next{0};
    std::mutex adding;
    Crew crew(threads);
    crew.run([&] {
        Exhauster exhauster(kernels, options, queries, deadline);
        for (std::size_t r = next++; r < ranges.size() && !crew.failed() && !deadline.look(); r = next++) {
            const Range &range = ranges[r];
            const std::size_t s = static_cast<std::size_t>(range.segment);
            if (!exhauster.score(*segments[s], range, parts[s])) return;
            for (std::size_t q = 0; q < queries.size(); ++q) exhauster.collect(*segments[s], range, q, masks[s], *tops[q]);
        }
        const std::lock_guard<std::mutex> guard(adding);
        for (std::size_t q = 0; q < queries.size(); ++q) results[q].stats.add(exhauster.stats[q]);
    });
}

// The rows of the largest window.
std::int64_t widest_window(const std::vector<Range> &ranges) {
    std::int64_t rows = 0, longest = 0;
    for (const Range &range : ranges) {
        rows += range.end - range.begin;
        longest = std::max(longest, range.end - range.begin);
    }
    return std::min(rows, WINDOW + longest);
}

void search_pruned(const Kernels &kernels, const Segments &segments, const Masks &masks, const Query &query,
                   std::size_t number, const PartsOfQueries &parts, const std::vector<Range> &ranges, int threads,
                   const Options &options, Deadline &deadline, TopK &top, Stats &stats) {
    // Enough seeds for a threshold after the first pass, but not more than one a block.
    const std::size_t seeds = std::max<std::size_t>(FEWEST_SEEDS, 2 * static_cast<std::size_t>(options.k) / ranges.size() + 1);
    const std::int64_t widest = widest_window(ranges);
    std::vector<SketchQuery> sketches;
    for (const SegmentView *segment : segments) sketches.push_back(sketch_query(*segment, query.sentence));
    Room room;
    std::int64_t *const scores = room.of(widest);
    std::mutex adding;
    for (std::size_t first = 0; first < ranges.size() && !deadline.passed();) {
        std::vector<Kept> window;  // as many ranges as the memory between the passes holds
        std::int64_t rows = 0;
        for (; first < ranges.size() && (window.empty() || rows < WINDOW); ++first) {
            window.push_back({ranges[first], rows, 0});
            rows += ranges[first].end - ranges[first].begin;
        }
        std::atomic<std::size_t> lists{0}, sentences{0};
        Crew crew(threads);
        crew.run([&] {
            Pruner pruner(kernels, options, query, top, deadline);
            Stats own;
            for (std::size_t r = lists++; r < window.size() && !crew.failed() && !deadline.look(); r = lists++) {
                const std::size_t s = static_cast<std::size_t>(window[r].range.segment);
                window[r].seeded = pruner.read_lists(*segments[s], window[r].range, parts[s][number], masks[s], seeds,
                                                     scores + window[r].offset, own);
            }
            if (!crew.meet()) return;
            for (std::size_t r = sentences++; r < window.size() && !crew.failed() && !deadline.look(); r = sentences++) {
                const std::size_t s = static_cast<std::size_t>(window[r].range.segment);
                pruner.read_sentences(*segments[s], sketches[s], window[r], masks[s], scores + window[r].offset, own);
            }
            const std::lock_guard<std::mutex> guard(adding);
            stats.add(own);
        });
    }
}

}  // namespace

void score_rows(const Kernels &kernels, const SegmentView &segment, const Query &query, std::int64_t *scores) {
    std::fill(scores, scores + segment.rows, 0);
    for (const Part &part : parts_of(segment, query, {segment.rows})) {
        ScanState state;
        kernels.scan(segment.mentions, segment.mention_rows, part.cuts[0], part.cuts[1], part.token->vector, query.floor, 0, scores, state);
        kernels.flush(state, 0, scores);
    }
    if (query.sentence.dim && segment.sentences.dim)
        kernels.add_rows(segment.sentences, 0, segment.rows, query.sentence, scores);
}

std::vector<Result> search(const Kernels &kernels, const Segments &segments, const Masks &masks, const Queries &queries,
                           const Options &options, Deadline &deadline) {
    std::vector<Result> results(queries.size());
    if (options.k <= 0 || queries.empty()) return results;
    // A pruned search with sentence vectors has its threshold from the seeds of all ranges.
    const std::vector<Range> ranges = cut(segments, options, !options.prune || !queries[0]->sentence.dim);
    if (ranges.empty()) return results;
    std::int64_t rows = 0;
    for (const SegmentView *segment : segments) rows += segment->rows;
    const std::int64_t useful = 1 + rows * static_cast<std::int64_t>(options.prune ? 1 : queries.size()) / WORTH_A_THREAD;
    const int threads = static_cast<int>(std::min<std::int64_t>(std::max(options.threads, 1), useful));
    std::vector<std::unique_ptr<TopK>> tops;
    const std::int64_t spare = options.prune ? 0 : options.k;  // pruning lives on thresholds
    for (std::size_t q = 0; q < queries.size(); ++q) tops.push_back(std::make_unique<TopK>(options.k, spare, options.at_least));
    PartsOfQueries parts(segments.size());  // looked up once, used by every range of the segment
    std::vector<std::vector<std::int64_t>> ends(segments.size());
    for (const Range &range : ranges) ends[static_cast<std::size_t>(range.segment)].push_back(range.end);
    for (std::size_t s = 0; s < segments.size(); ++s)
        for (const Query *query : queries) {
            if (deadline.look()) return results;
            parts[s].push_back(parts_of(*segments[s], *query, ends[s]));
        }
    if (!options.prune) {
        search_all(kernels, segments, masks, queries, parts, ranges, threads, options, deadline, tops, results);
    } else {
        for (std::size_t q = 0; q < queries.size() && !deadline.passed(); ++q)
            search_pruned(kernels, segments, masks, *queries[q], q, parts, ranges, threads, options, deadline, *tops[q],
                          results[q].stats);
    }
    for (std::size_t q = 0; q < queries.size(); ++q) results[q].found = tops[q]->sorted();
    return results;
}

}  // namespace coil
