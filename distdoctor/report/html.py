"""The report as one page of HTML that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import jinja2

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.recording.rank_set import named
from distdoctor.report.printable import shown as visible
from distdoctor.report.root_cause import brought_down, root_cause
from distdoctor.report.text import shown
from distdoctor.report.verdict import gap, state, verdict

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>distdoctor: {{ heading }}</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 .5rem; font-size: 1.1rem; }
code, pre, td { font-family: ui-monospace, monospace; font-size: .9rem; }
pre { padding: .6rem .8rem; background: rgba(127, 127, 127, .15); overflow-x: auto; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: .15rem 1.2rem .15rem 0; vertical-align: top; }
.error { color: #c62828; } .warning { color: #b26a00; } .note { color: #0b6e99; }
.quiet { opacity: .7; }
@media (prefers-color-scheme: dark) { .error { color: #ff8a80; } .warning { color: #ffd180; } .note { color: #80d8ff; } }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
<p class="quiet"><code>{{ job.argv | join(" ") }}</code><br>
{{ world_size }} ranks{% if job.launcher %}, launched by {{ job.launcher }}{% endif %}
{%- if job.exit_code is not none %}, exit code {{ job.exit_code }}{% endif %}
{%- if cause %}; root cause: rank {{ cause.rank }}, {{ cause.words }}{% endif %}
{%- if followers %}; {{ followers }} ended because of it{% endif %}</p>
{% if gap %}<p class="warning">Not everything was seen: {{ gap }}.</p>
{% endif %}
{% for finding in findings %}
<section>
<h2><span class="{{ finding.severity }}">{{ finding.code }} {{ finding.severity }}</span> {{ finding.ranks }}
{{ finding.place }}: {{ finding.title }} <span class="quiet">({{ finding.confidence }})</span></h2>
{% if finding.why %}<p>{{ finding.why }}</p>{% endif %}
{% if finding.places %}<table>
<tr><th>ranks</th><th>line</th><th>what they do there</th></tr>
{% for place in finding.places %}<tr><td>{{ place.ranks }}</td><td>{{ place.where }}</td><td>{{ place.role }}</td></tr>
{% endfor %}</table>{% endif %}
{% for cure in finding.prescriptions %}<p><strong>Fix:</strong> {{ cure.what }}
{%- if cure.effect %} <span class="quiet">{{ cure.effect }}</span>{% endif %}</p>
{% if cure.change %}<pre>{{ cure.change }}</pre>{% endif %}{% endfor %}
{% if finding.evidence %}<details><summary>evidence</summary><table>
{% for name, value in finding.evidence %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}</table></details>{% endif %}
</section>
{% else %}<p>{{ verdict }}</p>
{% endfor %}
<h2>Checks</h2>
<p>{{ examined | length }} made{% if suppressed %}; suppressed: {{ suppressed | join(", ") }}{% endif %}.</p>
{% if not_examined %}<table>
<tr><th>not examined</th><th></th><th>why</th></tr>
{% for one in not_examined %}<tr><td>{{ one.code }}</td><td>{{ one.slug }}</td><td>{{ one.reason }}</td></tr>
{% endfor %}</table>{% endif %}
{% if troubles %}<h2>What distdoctor could not do</h2>
<ul>{% for one in troubles %}<li>{{ one.what }}</li>
{% endfor %}</ul>{% endif %}
</body>
</html>
"""


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis as a page. Everything that came from the job is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    first = diagnosis.findings[0] if diagnosis.findings else None
    others = brought_down(diagnosis)
    page = environment.from_string(PAGE).render(
        heading=f"{first.code} {first.title}" if first else state(diagnosis),
        verdict=verdict(diagnosis),
        gap=gap(diagnosis),
        troubles=diagnosis.troubles,
        job=diagnosis.job,
        world_size=diagnosis.world_size,
        cause=root_cause(diagnosis),
        followers=named(others) if others else "",
        findings=[_finding(number, diagnosis) for number in range(len(diagnosis.findings))],
        examined=diagnosis.examined,
        suppressed=[finding.code for finding in diagnosis.suppressed],
        not_examined=diagnosis.not_examined,
    )
    return visible(page)


def _finding(number: int, diagnosis: Diagnosis) -> dict[str, object]:
    finding = diagnosis.findings[number]
    prescriptions = []
    for cure in finding.prescriptions:
        remedy = diagnosis.remedies.get(cure.slug)
        prescriptions.append(
            {
                "what": remedy.what if remedy else cure.slug,
                "change": cure.change or (remedy.how if remedy else ""),
                "effect": cure.effect or (remedy.effect if remedy else ""),
            }
        )
    return {
        "code": finding.code,
        "severity": finding.severity.word if finding.severity else "note",
        "ranks": finding.ranks_named if finding.ranks else "",
        "place": shown(finding.place) if finding.place else "",
        "title": finding.title,
        "confidence": str(finding.confidence),
        "why": finding.why,
        "places": [{"ranks": named(p.ranks), "where": shown(p.site), "role": p.role} for p in finding.places],
        "prescriptions": prescriptions,
        "evidence": [(name, str(value)[:2000]) for name, value in finding.evidence.items()],
    }
