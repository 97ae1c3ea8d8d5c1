// The Python bindings of the native code: searches; segment.hpp has the segments, query.hpp the queries.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "query.hpp"
#include "search.hpp"
#include "segment.hpp"

namespace nb = nanobind;
using namespace coil;

namespace coil {
float SCALES[256];
}

static bool has(const char *set) {
#if defined(COIL_X86)
    const std::string name = set;
    if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (name == "avx512")
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && has("avx2");
#elif defined(COIL_ARM64)
    if (std::string(set) == "neon") return true;  // part of every 64-bit ARM processor
#else
    (void)set;
#endif
    return false;
}

// The names of the kernels that this processor can run, best first.
static std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char *name : {"avx512", "avx2", "neon"})
        if (has(name)) names.push_back(name);
    names.push_back("portable");
    return names;
}

static const Kernels &kernels_of(const std::string &name) {
    const std::vector<std::string> names = instruction_sets();
    check(std::find(names.begin(), names.end(), name) != names.end(), "this processor does not support that instruction set");
#if defined(COIL_X86)
    if (name == "avx512") return avx512_kernels();
    if (name == "avx2") return avx2_kernels();
#elif defined(COIL_ARM64)
    if (name == "neon") return neon_kernels();
#endif
    return portable_kernels();
}

static void check_query(const SegmentView &segment, const Query &query) {
    check(query.tokens.empty() || !query.n_t || query.n_t == segment.mentions.dim, "token vectors differ in width");
    check(!query.head.dim || !segment.n_c() || (query.head.dim == segment.heads.dim && query.tail.dim == segment.tails.dim),
          "sentence vectors differ in width");
}

// The lists of a query in a segment, looked up and checked.
static Parts find_parts(Segment &segment, const Query &query, Deadline &deadline) {
    Parts parts;
    for (const QueryToken &token : query.tokens) {
        if (deadline.passed()) break;
        const std::int64_t list = segment.find(token.key);
        if (list < 0) continue;
        if (segment.check_list(list)) deadline.look();
        parts.push_back(make_part(segment.view, query, token, list));
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part &a, const Part &b) { return a.bound > b.bound; });
    return parts;
}

template <class T>
static nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> &&values) {
    auto *kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void *pointer) noexcept { delete static_cast<std::vector<T> *>(pointer); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

static nb::object search_segments(const std::string &instruction_set, const std::vector<Segment *> &segments,
                                  const std::vector<std::optional<Array<std::uint8_t>>> &masks,
                                  const std::vector<NativeQuery *> &queries, std::int64_t k, bool prune, bool without_zero,
                                  std::int64_t at_least, int threads, double seconds, std::int64_t range_rows) {
    check(range_rows > 0, "a range must have at least one row");
    const Kernels &kernels = kernels_of(instruction_set);
    check(masks.size() == segments.size(), "there must be one mask for each segment");
    Segments views;
    Masks mask_data;
    Queries asked;
    for (const NativeQuery *query : queries) asked.push_back(&query->query);
    for (std::size_t s = 0; s < segments.size(); ++s) {
        check(!masks[s] || static_cast<std::int64_t>(masks[s]->shape(0)) == segments[s]->view.rows, "a mask has the wrong size");
        views.push_back(&segments[s]->view);
        mask_data.push_back(masks[s] ? masks[s]->data() : nullptr);
        for (const Query *query : asked) check_query(segments[s]->view, *query);
    }
    Options options;
    options.k = k;
    options.prune = prune;
    options.without_zero = without_zero;
    options.at_least = at_least;
    options.threads = threads;
    options.range_rows = range_rows;
    std::vector<Result> results;
    Deadline deadline(seconds);
    {
        const nb::gil_scoped_release release;
        PartsOfQueries parts(segments.size());
        for (std::size_t s = 0; s < segments.size() && !deadline.look(); ++s)
            for (const Query *query : asked) parts[s].push_back(find_parts(*segments[s], *query, deadline));
        if (!deadline.look()) results = search(kernels, views, mask_data, asked, parts, options, deadline);
    }
    if (deadline.passed()) return nb::none();
    nb::list answers;
    for (Result &result : results) {
        std::vector<std::int64_t> scores, ordinals;
        std::vector<std::int32_t> of_segment, rows;
        for (const Found &found : result.found) {
            scores.push_back(found.score);
            ordinals.push_back(found.ordinal);
            of_segment.push_back(found.segment);
            rows.push_back(found.row);
        }
        const Stats &s = result.stats;
        answers.append(nb::make_tuple(to_numpy(std::move(scores)), to_numpy(std::move(ordinals)), to_numpy(std::move(of_segment)),
                                      to_numpy(std::move(rows)),
                                      nb::make_tuple(s.mentions_scored, s.mentions_skipped, s.sentences_scored,
                                                     s.sentences_skipped, s.heads_scored)));
    }
    return answers;
}

static nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> score_segment(const std::string &instruction_set, Segment &segment,
                                                                       const NativeQuery &query) {
    const Kernels &kernels = kernels_of(instruction_set);
    check_query(segment.view, query.query);
    std::vector<std::int64_t> scores(static_cast<std::size_t>(segment.view.rows));
    {
        const nb::gil_scoped_release release;
        Deadline none(0.0);
        score_rows(kernels, segment.view, query.query, find_parts(segment, query.query, none), scores.data());
    }
    return to_numpy(std::move(scores));
}

static nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>> find_keys(const std::vector<Segment *> &segments,
                                                                   const std::vector<nb::bytes> &keys) {
    std::vector<std::string> wanted;
    for (const nb::bytes &key : keys) wanted.emplace_back(key.c_str(), key.size());
    std::vector<std::int32_t> places;
    {
        const nb::gil_scoped_release release;
        places.reserve(segments.size() * wanted.size());
        for (Segment *segment : segments)
            for (const std::string &key : wanted) places.push_back(static_cast<std::int32_t>(segment->find(key)));
    }
    auto *kept = new std::vector<std::int32_t>(std::move(places));
    nb::capsule owner(kept, [](void *pointer) noexcept { delete static_cast<std::vector<std::int32_t> *>(pointer); });
    return nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>>(kept->data(), {segments.size(), wanted.size()}, owner);
}

// Seconds to read an array once with this many threads: a lower bound for any search over as many bytes.
static double read_seconds(Array<std::uint64_t> words, int threads) {
    const std::size_t n = words.shape(0), parts = static_cast<std::size_t>(std::max(threads, 1));
    const std::uint64_t *data = words.data();
    std::atomic<std::uint64_t> sink{0};
    std::atomic<std::size_t> next{0};
    const nb::gil_scoped_release release;
    const auto began = std::chrono::steady_clock::now();
    Crew(static_cast<int>(parts)).run([&] {
        const std::size_t part = next++;
        const std::size_t from = n * part / parts, to = n * (part + 1) / parts;
        std::uint64_t sums[32] = {};
        std::size_t i = from;
        for (; i + 32 <= to; i += 32)
            for (int j = 0; j < 32; ++j) sums[j] += data[i + static_cast<std::size_t>(j)];
        std::uint64_t total = 0;
        for (const std::uint64_t sum : sums) total += sum;
        sink += total;
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// For tests: after this many further successes, one operation of this kind fails. -1: none fails.
static void fail_after(const std::string &what, std::int64_t occasions) {
    check(what == "thread" || what == "memory", "only threads and memory can be made to fail");
    (what == "thread" ? thread_fault : memory_fault).set(occasions);
}

NB_MODULE(_native, m) {
    m.doc() = "Native loops of the search core.";
    nb::set_leak_warnings(false);  // daemon threads keep what they search until the process ends
    for (int c = 0; c < 256; ++c) SCALES[c] = static_cast<float>(std::exp2((c - 160) / 8.0));
    nb::class_<Segment>(m, "Segment", "A segment's arrays, checked. The caller keeps them alive.")
        .def(nb::init<nb::dict, std::int64_t, double, double, double>(), nb::arg("arrays"), nb::arg("n_t"), nb::arg("longest_sentence"),
             nb::arg("k1"), nb::arg("b"));
    nb::class_<NativeQuery>(m, "Query", "A query's keys and vectors.")
        .def(nb::init<const std::vector<nb::bytes> &, Array<float>, Matrix<float>, Array<float>, bool, float, float, bool>(),
             nb::arg("keys"), nb::arg("bases"), nb::arg("vectors"), nb::arg("sentence"), nb::arg("weighted"), nb::arg("c0"),
             nb::arg("c1"), nb::arg("floor"));
    m.def("find_keys", &find_keys, nb::arg("segments"), nb::arg("keys"),
          "The position of each key in each segment, [segments, keys]; -1 if it is not there.");
    m.def("search", &search_segments, nb::arg("instruction_set"), nb::arg("segments"), nb::arg("masks"), nb::arg("queries"),
          nb::arg("k"), nb::arg("prune"), nb::arg("without_zero"), nb::arg("at_least"), nb::arg("threads"),
          nb::arg("seconds"), nb::arg("range_rows") = 16384,
          "The k best documents of each query: scores, ordinals, segments, rows and counts; None if time ran out.");
    m.def("score_segment", &score_segment, nb::arg("instruction_set"), nb::arg("segment"), nb::arg("query"),
          "The score of every row, in multiples of 2^-32.");
    m.def("instruction_sets", &instruction_sets, "The kernels that this processor can run, best first.");
    m.def("read_seconds", &read_seconds, nb::arg("words"), nb::arg("threads"), "Seconds to read an array once.");
    m.def("_fail_after", &fail_after, nb::arg("what"), nb::arg("occasions"), "For tests: let a thread start or an allocation fail.");
}
