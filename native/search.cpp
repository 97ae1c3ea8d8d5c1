#include "search.hpp"

#include "exhaustive.hpp"
#include "pruning.hpp"

namespace coil {
namespace {

constexpr std::int64_t WORTH_A_THREAD = 32768;  // rows per thread

void search_pruned(const Kernels &kernels, const Segments &segments, const Masks &masks, const Query &query, std::size_t number,
                   const PartsOfQueries &parts, const std::vector<Range> &ranges, int threads, const Options &options,
                   Deadline &deadline, TopK &top, Stats &stats) {
    std::vector<std::vector<Line>> lines;
    for (std::size_t s = 0; s < segments.size(); ++s) lines.push_back(lines_of(*segments[s], query, parts[s][number]));
    std::atomic<std::size_t> next{0};
    std::mutex adding;
    Crew crew(threads);
    crew.run([&] {
        Pruner pruner(kernels, options, query, top, deadline);
        for (std::size_t r = next++; r < ranges.size() && !crew.failed() && !deadline.look(); r = next++) {
            const std::size_t s = static_cast<std::size_t>(ranges[r].segment);
            pruner.search(*segments[s], lines[s], ranges[r], masks[s]);
        }
        const std::lock_guard<std::mutex> guard(adding);
        stats.add(pruner.stats);
    });
    // What was not scored was skipped; a mention or a row may have been scored twice.
    std::int64_t mentions = 0, rows = 0;
    for (std::size_t s = 0; s < segments.size(); ++s) {
        for (const Part &part : parts[s][number]) mentions += part.list.end - part.list.begin;
        if (query.is_dense(*segments[s])) rows += segments[s]->rows;
    }
    stats.mentions_scored = std::min(stats.mentions_scored, mentions);
    stats.mentions_skipped = mentions - stats.mentions_scored;
    stats.sentences_scored = std::min(stats.sentences_scored, rows);
    stats.sentences_skipped = rows - stats.sentences_scored;
}

// Pruning requires non-negative parts, and bounds that can be added without overflow.
bool can_prune(const Segments &segments, const Query &query, const PartsOfQueries &parts, std::size_t number) {
    if (!query.floor) return false;
    for (std::size_t s = 0; s < segments.size(); ++s)
        if (!Pruner::can_add_up(*segments[s], query, parts[s][number])) return false;
    return true;
}

}  // namespace

Part make_part(const SegmentView &segment, const Query &query, const QueryToken &token, std::int64_t list) {
    const double factor = factor_bound(segment, query, segment.list_factors[list]);
    return {&token, list, List(segment, list), bound_of(factor * fit_bound(token, segment.list_norms[list]), token.multiple)};
}

void score_rows(const Kernels &kernels, const SegmentView &segment, const Query &query, const Parts &parts, std::int64_t *scores) {
    std::fill(scores, scores + segment.rows, 0);
    for (const Part &part : parts) {
        const List &list = part.list;
        kernels.add_list(segment, {list.first, list.last - list.first, list.begin, list.end}, term_of(query, *part.token), 0, scores);
    }
    if (!query.is_dense(segment)) return;
    kernels.add_rows(segment.heads, 0, segment.rows, query.head, scores);
    kernels.add_rows(segment.tails, 0, segment.rows, query.tail, scores);
}

std::vector<Result> search(const Kernels &kernels, const Segments &segments, const Masks &masks, const Queries &queries,
                           const PartsOfQueries &parts, const Options &options, Deadline &deadline) {
    std::vector<Result> results(queries.size());
    if (options.k <= 0 || queries.empty()) return results;
    std::int64_t rows = 0;
    for (const SegmentView *segment : segments) rows += segment->rows;
    const std::int64_t useful = 1 + rows * static_cast<std::int64_t>(options.prune ? 1 : queries.size()) / WORTH_A_THREAD;
    const int threads = static_cast<int>(std::min<std::int64_t>(std::max(options.threads, 1), useful));
    std::vector<std::unique_ptr<TopK>> tops;
    const std::int64_t spare = options.prune ? 0 : options.k;  // pruning depends on a tight threshold
    for (std::size_t q = 0; q < queries.size(); ++q) tops.push_back(std::make_unique<TopK>(options.k, spare, options.at_least));
    bool prune = options.prune;
    for (std::size_t q = 0; q < queries.size() && prune; ++q) prune = can_prune(segments, *queries[q], parts, q);
    if (!prune)
        search_all(kernels, segments, masks, queries, parts, cut(segments, options, false), threads, options, deadline, tops, results);
    else
        for (std::size_t q = 0; q < queries.size() && !deadline.passed(); ++q)
            search_pruned(kernels, segments, masks, *queries[q], q, parts, cut(segments, options, !queries[q]->tokens.empty()), threads, options,
                          deadline, *tops[q], results[q].stats);
    for (std::size_t q = 0; q < queries.size(); ++q) results[q].found = tops[q]->sorted();
    return results;
}

}  // namespace coil
