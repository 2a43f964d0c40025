"""What platforms let teachers download, as names of files, and whose they are."""

import unicodedata

TYPED = "only text or a link on the page of the platform, no file"
MOODLE, LAST = "_assignsubmission_file_", "attempt_2026-05-03-09-00-00"
# For each form: what is in the folder, which learner has which file graded, and who has none.
FORMS = {
    "Moodle": (
        [
            f"Ana-María Doe_123400{MOODLE}/00_start_here.ipynb",
            "Ana-María Doe_123400_assignsubmission_onlinetext_/onlinetext.html",
            f"Kim Doe_123401{MOODLE}00_start_here.ipynb",
            f"Participant_123402{MOODLE}/exercise/00_start_here.ipynb",
            "Zoë Roe_123403_assignsubmission_onlinetext_/onlinetext.html",
        ],
        {
            ("Ana-María Doe", "123400"): "00_start_here.ipynb",
            ("Kim Doe", "123401"): f"Kim Doe_123401{MOODLE}00_start_here.ipynb",
            ("Participant", "123402"): "00_start_here.ipynb",
        },
        {("Zoë Roe", "123403"): TYPED},
    ),
    "Canvas": (
        [
            "doejane_12345_678901_00_start_here.ipynb",
            "doejohn_LATE_12346_678902_00_start_here-1.ipynb",
            "doejohn_LATE_12346_678950_00_start_here-2.ipynb",
            "doejohn_12346_678802_00_start_here.ipynb",
            "roeadam_12347_678903_Copy of 00_start_here (1).ipynb",
            "doejane_12399_678904_00_start_here.ipynb",
            "doezoe_LATE_12348_678904_scan.pdf",
            "doeada_12349_text.html",
        ],
        {
            ("doejane", "12345"): "doejane_12345_678901_00_start_here.ipynb",
            ("doejane", "12399"): "doejane_12399_678904_00_start_here.ipynb",
            ("doejohn", "12346"): "doejohn_LATE_12346_678950_00_start_here-2.ipynb",
            ("roeadam", "12347"): "roeadam_12347_678903_Copy of 00_start_here (1).ipynb",
        },
        {
            ("doezoe", "12348"): "not a notebook (.ipynb)",
            ("doeada", "12349"): TYPED,
        },
    ),
    "Canvas, anonymous": (
        [
            "anon_aB3dE_900001_00_start_here.ipynb",
            "LATE_anon_xY9zQ_900002_00_start_here.ipynb",
            "anon_12345_900003_00_start_here.ipynb",
            "LATE_anon_pQ7rS_text.html",
        ],
        {  # a number of Canvas's gradebook is none of these
            ("anon_12345", "anon_12345"): "anon_12345_900003_00_start_here.ipynb",
            ("anon_aB3dE", "anon_aB3dE"): "anon_aB3dE_900001_00_start_here.ipynb",
            ("anon_xY9zQ", "anon_xY9zQ"): "LATE_anon_xY9zQ_900002_00_start_here.ipynb",
        },
        {
            (
                "anon_pQ7rS",
                "anon_pQ7rS",
            ): TYPED,
        },
    ),
    "Canvas, groups and older names": (
        [
            "team_a_11125_678901_00_start_here.ipynb",
            "team_b_LATE_11126_678902_00_start_here.ipynb",
            "team_7_11127_678903_00_start_here.ipynb",
            "doejane_late_12345_678904_00_start_here.ipynb",
            "doekim_12346_678905_09_2026_final.ipynb",
            "_12347_678906_00_start_here.ipynb",
            "team_c_11128_link.html",
        ],
        {
            ("team_a", "11125"): "team_a_11125_678901_00_start_here.ipynb",
            ("team_b", "11126"): "team_b_LATE_11126_678902_00_start_here.ipynb",
            ("team_7", "11127"): "team_7_11127_678903_00_start_here.ipynb",
            ("doejane", "12345"): "doejane_late_12345_678904_00_start_here.ipynb",
            ("doekim", "12346"): "doekim_12346_678905_09_2026_final.ipynb",
            ("12347", "12347"): "_12347_678906_00_start_here.ipynb",  # a name of no letters
        },
        {("team_c", "11128"): TYPED},
    ),
    "Blackboard": (
        [
            "Exercise 00_jdoe_attempt_2026-05-01-10-30-00.txt",
            "Exercise 00_jdoe_attempt_2026-05-01-10-30-00_00_start_here.ipynb",
            f"Exercise 00_jdoe_{LAST}.txt",
            f"Exercise 00_jdoe_{LAST}_final.ipynb",
            f"Exercise 00_k_roe_{LAST}_00_start_here.ipynb",
            "Exercise 00_zroe_attempt_2026-05-01-10-30-00.txt",
            "Exercise 00_zroe_attempt_2026-05-01-10-30-00_answers.py",
        ],
        {
            ("Jane Doe", "jdoe"): f"Exercise 00_jdoe_{LAST}_final.ipynb",
            ("roe", "roe"): f"Exercise 00_k_roe_{LAST}_00_start_here.ipynb",
        },
        {("zroe", "zroe"): "a Python file (.py), not a notebook"},
    ),
    "Brightspace": (
        [
            "12345-67890 - Jane Doe - May 9, 2026 1030 AM/final.ipynb",
            "12345-67890 - Jane Doe - May 10, 2026 105 PM/00_start_here.ipynb",
            "index.html",
        ],
        {("Jane Doe", "12345"): "00_start_here.ipynb"},
        {},
    ),
    **{
        f"Brightspace, {where}": (
            [
                f"12345-67890 - Jane Doe - Roe - {earlier}/final.ipynb",
                f"12345-67890 - Jane Doe - Roe - {later}/00_start_here.ipynb",
            ],
            {("Jane Doe - Roe", "12345"): "00_start_here.ipynb"},
            {},
        )
        for where, earlier, later in (
            ("British dates", "9 May, 2026 1030", "10 May, 2026 0930"),
            ("American numbers", "5-2-2026 1030 AM", "6-1-2026 105 AM"),
            ("European numbers", "09.05.2026 1130", "01.06.2026 1030"),
            ("ISO dates", "2026-05-09 2230", "2026-05-10 0930"),
            ("German dates", "9. März 2026 10.30 Uhr", "1. Mai 2026 9.30 Uhr"),
            ("Spanish dates", "9 de enero de 2026 10:30 a. m.", "9 de enero de 2026 1:30 p. m."),
        )
    },
    "Microsoft Teams": (
        [
            "Submitted files/Jane Doe/Exercise 00/Version 1/00_start_here.ipynb",
            "Submitted files/Jane Doe/Exercise 00/Version 2/00_start_here.ipynb",
            "Submitted files/Jane Doe/Exercise 00/Version 10/final.ipynb",
            "Submitted files/Kim Roe/Exercise 00/Versión 1/00_start_here.ipynb",
            "Submitted files/Ren Sato/Exercise 00/バージョン1 /00_start_here.ipynb",
            "Submitted files/Zoë Roe/Exercise 00/Version 1/report.docx",
        ],
        {
            ("Jane Doe", ""): "final.ipynb",
            ("Kim Roe", ""): "00_start_here.ipynb",
            ("Ren Sato", ""): "00_start_here.ipynb",
        },
        {("Zoë Roe", ""): "not a notebook (.ipynb)"},
    ),
    "Gradescope": (
        [
            "assignment_77_export/submission_501/00_start_here.ipynb",
            "assignment_77_export/submission_502/answers.pdf",
            "assignment_77_export/submission_metadata.yml",
        ],
        {('Renée "RD" Döe & Kim O\'Roe', "501"): "00_start_here.ipynb"},
        {("submission_502", "502"): "not a notebook (.ipynb)"},
    ),
    "GitHub Classroom": (
        [
            "ps1-submissions/ps1-jane-doe/exercises/00_start_here.ipynb",
            "ps1-submissions/ps1-jane-doe/notebooks/00_start_here.ipynb",
            "ps1-submissions/ps1-kim/00_start_here.ipynb",
            "ps1-submissions/ps1-roe/README.md",
        ],
        {("jane-doe", "jane-doe"): "00_start_here.ipynb", ("kim", "kim"): "00_start_here.ipynb"},
        {("roe", "roe"): "not a notebook (.ipynb)"},
    ),
    "Google Classroom": (
        [
            "Jane Doe - 00_start_here.ipynb",
            "Anne-Marie Roe - Copy of 00_start_here.ipynb",
            "Zoë Roe - answers.py",
        ],
        {
            ("Jane Doe", ""): "Jane Doe - 00_start_here.ipynb",
            ("Anne-Marie Roe", ""): "Anne-Marie Roe - Copy of 00_start_here.ipynb",
        },
        {("Zoë Roe", ""): "a Python file (.py), not a notebook"},
    ),
    "Google Classroom, Takeout": (
        [
            "Takeout/Classroom/ML - 2026/Exercise 00/Jane Doe - 00_start_here.ipynb",
            "Takeout/Classroom/ML - 2026/Exercise 00/Émile Roe - Copy of 00_start_here (1).ipynb",
            "Takeout/Classroom/ML - 2026/Exercise 00/Émile Roe - Copy of 00_start_here.ipynb",
            "Takeout/Classroom/ML - 2026/Exercise 00/Zoë Roe - answers.py",
            "Takeout/archive_browser.html",
        ],
        {
            ("Jane Doe", ""): "Jane Doe - 00_start_here.ipynb",
            ("Émile Roe", ""): "Émile Roe - Copy of 00_start_here (1).ipynb",
        },
        {("Zoë Roe", ""): "a Python file (.py), not a notebook"},
    ),
    "nbgrader": (
        [
            "submitted/jane/00_start_here/00_start_here.ipynb",
            "submitted/jane/00_start_here/timestamp.txt",
            "submitted/max/00_start_here/answers.docx",
        ],
        {("jane", ""): "00_start_here.ipynb"},
        {("max", ""): "not a notebook (.ipynb)"},
    ),
    "a folder for each learner": (
        [
            "jane/00_start_here.ipynb",
            "jane/old/00_start_here.ipynb",
            "anna-maria/00_start_here.ipynb.txt",
            "anna-lena/00_start_here (2).ipynb",
            "anna-lena/00_start_here.ipynb",
            "kim/exercises/00_start_here.ipynb",
            "kim/notebooks/00_start_here.ipynb",
            "zoe/homework.pdf",
            "roster.csv",
        ],
        {
            ("jane", ""): "00_start_here.ipynb",
            ("anna-maria", ""): "00_start_here.ipynb.txt",
            ("anna-lena", ""): "00_start_here (2).ipynb",
            ("kim", ""): "00_start_here.ipynb",
        },
        {("zoe", ""): "not a notebook (.ipynb)"},
    ),
    "a folder for each learner, odd names": (
        [
            *(f"anna-{name}/00_start_here.ipynb" for name in ("lena", "maria", "sofia")),
            f"{unicodedata.normalize('NFD', 'José')}/00_start_here.ipynb",
            f"{'n' * 240}/00_start_here.ipynb",
            "🦊/00_start_here.ipynb",
            "   /00_start_here.ipynb",
            "Max/task_09_2026_final.ipynb",
            "Zoe/.ipynb_checkpoints/00_start_here-checkpoint.ipynb",
        ],
        {
            **{(f"anna-{name}", ""): "00_start_here.ipynb" for name in ("lena", "maria", "sofia")},
            ("José", ""): "00_start_here.ipynb",
            ("n" * 240, ""): "00_start_here.ipynb",
            ("🦊", ""): "00_start_here.ipynb",
            ("   ", ""): "00_start_here.ipynb",
            ("Max", ""): "task_09_2026_final.ipynb",
        },
        {("Zoe", ""): "a folder with files of systems only, such as .ipynb_checkpoints"},
    ),
    "a file for each learner": (
        ["jane.ipynb", "john.IPYNB", "zoe.py", "README.md"],
        {("jane", ""): "jane.ipynb", ("john", ""): "john.IPYNB"},
        {("zoe", ""): "a Python file (.py), not a notebook"},
    ),
}
METADATA = """---
submission_501:
  :submitters:
  - :name: "Ren\\u00e9e \\"RD\\" D\\xF6e"
    :sid: '7'
  - :name: 'Kim O''Roe'
    :sid: '8'
  :results:
  - :name: slices
"""
