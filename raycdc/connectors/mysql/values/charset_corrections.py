"""Differences between servers' character sets and Python's codecs of the same name.

They were found by querying MySQL 5.7, 8.0 and MariaDB 10.11 for every code of every set (``CONVERT(… USING utf32)``);
the servers agree. Used by `charsets`. An entry ``B.CODE*COUNT=POINT`` means that COUNT codes from CODE on, of B bytes
each, are the code points from POINT on; ``=-`` means that they are no characters. Codes of three bytes are written
without their first byte (0x8F); codes of four bytes count from 81308130 on. All numbers but B and COUNT are
hexadecimal.
"""

CORRECTIONS = {
    "armscii8": (
        "1.80*33=80 1.a1=2741 1.a2=a7 1.a3=589 1.a4=29 1.a5=28 1.a6=bb 1.a7=ab 1.a8=2014 1.a9=2e 1.aa=55d "
        "1.ab*2=2c 1.ad=55f 1.ae=2026 1.af=55c 1.b0=55b 1.b1=55e 1.b2=531 1.b3=561 1.b4=532 1.b5=562 1.b6=533 "
        "1.b7=563 1.b8=534 1.b9=564 1.ba=535 1.bb=565 1.bc=536 1.bd=566 1.be=537 1.bf=567 1.c0=538 1.c1=568 "
        "1.c2=539 1.c3=569 1.c4=53a 1.c5=56a 1.c6=53b 1.c7=56b 1.c8=53c 1.c9=56c 1.ca=53d 1.cb=56d 1.cc=53e "
        "1.cd=56e 1.ce=53f 1.cf=56f 1.d0=540 1.d1=570 1.d2=541 1.d3=571 1.d4=542 1.d5=572 1.d6=543 1.d7=573 "
        "1.d8=544 1.d9=574 1.da=545 1.db=575 1.dc=546 1.dd=576 1.de=547 1.df=577 1.e0=548 1.e1=578 1.e2=549 "
        "1.e3=579 1.e4=54a 1.e5=57a 1.e6=54b 1.e7=57b 1.e8=54c 1.e9=57c 1.ea=54d 1.eb=57d 1.ec=54e 1.ed=57e "
        "1.ee=54f 1.ef=57f 1.f0=550 1.f1=580 1.f2=551 1.f3=581 1.f4=552 1.f5=582 1.f6=553 1.f7=583 1.f8=554 "
        "1.f9=584 1.fa=555 1.fb=585 1.fc=556 1.fd=586 1.fe=2019 1.ff=27"
    ),
    "big5": (
        "2.a15a=fffd 2.a1c3=fffd 2.a1c5=fffd 2.a1fe=fffd 2.a240=fffd 2.a2cc=fffd 2.a2ce=fffd 2.f9d6=7881 "
        "2.f9d7=92b9 2.f9d8=88cf 2.f9d9=58bb 2.f9da=6052 2.f9db=7ca7 2.f9dc=5afa"
    ),
    "cp1256": ("1.8a=- 1.8f=- 1.98=- 1.9a=- 1.9f=- 1.aa=- 1.c0=- 1.ff=-"),
    "cp866": ("1.fc=207f 1.fd=b2"),
    "cp932": ("1.80=- 1.a0=- 1.fd*3=-"),
    "dec8": (
        "1.80*36=80 1.a5=a5 1.a7=a7 1.a8=a4 1.a9*3=a9 1.b0*4=b0 1.b5*3=b5 1.b9*5=b9 1.bf*17=bf 1.d1*6=d1 "
        "1.d7=152 1.d8*5=d8 1.dd=178 1.df*17=df 1.f1*6=f1 1.f7=153 1.f8*5=f8 1.fd=ff"
    ),
    "eucjpms": (
        "2.a1c1=ff5e 2.a1c2=2225 2.a1dd=ff0d 2.a1f1*2=ffe0 2.a2cc=ffe2 2.ada1*20=2460 2.adb5*10=2160 "
        "2.adc0=3349 2.adc1=3314 2.adc2=3322 2.adc3=334d 2.adc4=3318 2.adc5=3327 2.adc6=3303 2.adc7=3336 "
        "2.adc8=3351 2.adc9=3357 2.adca=330d 2.adcb=3326 2.adcc=3323 2.adcd=332b 2.adce=334a 2.adcf=333b "
        "2.add0*3=339c 2.add3*2=338e 2.add5=33c4 2.add6=33a1 2.addf=337b 2.ade0=301d 2.ade1=301f 2.ade2=2116 "
        "2.ade3=33cd 2.ade4=2121 2.ade5*5=32a4 2.adea*2=3231 2.adec=3239 2.aded=337e 2.adee=337d 2.adef=337c "
        "2.adf0=2252 2.adf1=2261 2.adf2=222b 2.adf3=222e 2.adf4=2211 2.adf5=221a 2.adf6=22a5 2.adf7=2220 "
        "2.adf8=221f 2.adf9=22bf 2.adfa=2235 2.adfb*2=2229 2.f5a1*94=e000 2.f6a1*94=e05e 2.f7a1*94=e0bc "
        "2.f8a1*94=e11a 2.f9a1*94=e178 2.faa1*94=e1d6 2.fba1*94=e234 2.fca1*94=e292 2.fda1*94=e2f0 "
        "2.fea1*94=e34e 3.a2b7=ff5e 3.a2c3=ffe4 3.f3f3*10=2170 3.f3fd*2=2160 3.f4a1*8=2162 3.f4a9=ff07 "
        "3.f4aa=ff02 3.f4ab=3231 3.f4ac=2116 3.f4ad=2121 3.f4ae=70bb 3.f4af=4efc 3.f4b0=50f4 3.f4b1=51ec "
        "3.f4b2=5307 3.f4b3=5324 3.f4b4=fa0e 3.f4b5=548a 3.f4b6=5759 3.f4b7*2=fa0f 3.f4b9=589e 3.f4ba=5bec "
        "3.f4bb=5cf5 3.f4bc=5d53 3.f4bd=fa11 3.f4be=5fb7 3.f4bf=6085 3.f4c0=6120 3.f4c1=654e 3.f4c2=663b "
        "3.f4c3=6665 3.f4c4=fa12 3.f4c5=f929 3.f4c6=6801 3.f4c7*2=fa13 3.f4c9=6a6b 3.f4ca=6ae2 3.f4cb=6df8 "
        "3.f4cc=6df2 3.f4cd=7028 3.f4ce*2=fa15 3.f4d0=7501 3.f4d1=7682 3.f4d2=769e 3.f4d3=fa17 3.f4d4=7930 "
        "3.f4d5*4=fa18 3.f4d9=7ae7 3.f4da*2=fa1c 3.f4dc=7da0 3.f4dd=7dd6 3.f4de=fa1e 3.f4df=8362 3.f4e0=fa1f "
        "3.f4e1=85b0 3.f4e2*2=fa20 3.f4e4=8807 3.f4e5=fa22 3.f4e6=8b7f 3.f4e7=8cf4 3.f4e8=8d76 3.f4e9*3=fa23 "
        "3.f4ec=90de 3.f4ed=fa26 3.f4ee=9115 3.f4ef*2=fa27 3.f4f1=9592 3.f4f2=f9dc 3.f4f3=fa29 3.f4f4=973b "
        "3.f4f5=974d 3.f4f6=9751 3.f4f7*3=fa2a 3.f4fa=999e 3.f4fb=9ad9 3.f4fc=9b72 3.f4fd=fa2d 3.f4fe=9ed1 "
        "3.f5a1*94=e3ac 3.f6a1*94=e40a 3.f7a1*94=e468 3.f8a1*94=e4c6 3.f9a1*94=e524 3.faa1*94=e582 "
        "3.fba1*94=e5e0 3.fca1*94=e63e 3.fda1*94=e69c 3.fea1*94=e6fa"
    ),
    "gb18030": ("2.a8bc=1e3f 4.1d21=e7c7"),
    "geostd8": (
        "1.80=20ac 1.82=201a 1.84=201e 1.85=2026 1.86*2=2020 1.89=2030 1.8b=2039 1.91*2=2018 1.93*2=201c "
        "1.95=2022 1.96*2=2013 1.9b=203a 1.a0*32=a0 1.c0*7=10d0 1.c7=10f1 1.c8*6=10d7 1.ce=10f2 1.cf*6=10dd "
        "1.d5=10f3 1.d6*12=10e3 1.e2=10f4 1.e3*2=10ef 1.e5=10f5 1.fd=2116"
    ),
    "greek": ("1.a1=2bd 1.a2=2bc 1.a4*2=- 1.aa=-"),
    "hebrew": ("1.af=203e"),
    "hp8": (
        "1.80*33=80 1.a1=c0 1.a2=c2 1.a3=c8 1.a4*2=ca 1.a6*2=ce 1.a8=b4 1.a9=2cb 1.aa=2c6 1.ab=a8 1.ac=2dc "
        "1.ad=d9 1.ae=db 1.af=20a4 1.b0=af 1.b1=dd 1.b2=fd 1.b3=b0 1.b4=c7 1.b5=e7 1.b6=d1 1.b7=f1 1.b8=a1 "
        "1.b9=bf 1.ba=a4 1.bb=a3 1.bc=a5 1.bd=a7 1.be=192 1.bf=a2 1.c0=e2 1.c1=ea 1.c2=f4 1.c3=fb 1.c4=e1 "
        "1.c5=e9 1.c6=f3 1.c7=fa 1.c8=e0 1.c9=e8 1.ca=f2 1.cb=f9 1.cc=e4 1.cd=eb 1.ce=f6 1.cf=fc 1.d0=c5 "
        "1.d1=ee 1.d2=d8 1.d3=c6 1.d4=e5 1.d5=ed 1.d6=f8 1.d7=e6 1.d8=c4 1.d9=ec 1.da=d6 1.db=dc 1.dc=c9 "
        "1.dd=ef 1.de=df 1.df=d4 1.e0=c1 1.e1=c3 1.e2=e3 1.e3=d0 1.e4=f0 1.e5=cd 1.e6=cc 1.e7=d3 1.e8=d2 "
        "1.e9=d5 1.ea=f5 1.eb*2=160 1.ed=da 1.ee=178 1.ef=ff 1.f0=de 1.f1=fe 1.f2=b7 1.f3*2=b5 1.f5=be "
        "1.f6=2014 1.f7*2=bc 1.f9=aa 1.fa=ba 1.fb=ab 1.fc=25a0 1.fd=bb 1.fe=b1"
    ),
    "keybcs2": (
        "1.80=10c 1.81=fc 1.82=e9 1.83=10f 1.84=e4 1.85=10e 1.86=164 1.87=10d 1.88=11b 1.89=11a 1.8a=139 "
        "1.8b=cd 1.8c=13e 1.8d=13a 1.8e=c4 1.8f=c1 1.90=c9 1.91=17e 1.92=17d 1.93=f4 1.94=f6 1.95=d3 1.96=16f "
        "1.97=da 1.98=fd 1.99=d6 1.9a=dc 1.9b=160 1.9c=13d 1.9d=dd 1.9e=158 1.9f=165 1.a0=e1 1.a1=ed 1.a2=f3 "
        "1.a3=fa 1.a4=148 1.a5=147 1.a6=16e 1.a7=d4 1.a8=161 1.a9=159 1.aa=155 1.ab=154 1.ac=bc 1.ad=a1 "
        "1.ae=ab 1.af=bb 1.b0*3=2591 1.b3=2502 1.b4=2524 1.b5*2=2561 1.b7=2556 1.b8=2555 1.b9=2563 1.ba=2551 "
        "1.bb=2557 1.bc=255d 1.bd=255c 1.be=255b 1.bf=2510 1.c0=2514 1.c1=2534 1.c2=252c 1.c3=251c 1.c4=2500 "
        "1.c5=253c 1.c6*2=255e 1.c8=255a 1.c9=2554 1.ca=2569 1.cb=2566 1.cc=2560 1.cd=2550 1.ce=256c "
        "1.cf*2=2567 1.d1*2=2564 1.d3=2559 1.d4=2558 1.d5*2=2552 1.d7=256b 1.d8=256a 1.d9=2518 1.da=250c "
        "1.db=2588 1.dc=2584 1.dd=258c 1.de=2590 1.df=2580 1.e0=3b1 1.e1=df 1.e2=393 1.e3=3c0 1.e4=3a3 "
        "1.e5=3c3 1.e6=b5 1.e7=3c4 1.e8=3a6 1.e9=398 1.ea=3a9 1.eb=3b4 1.ec=221e 1.ed=3c6 1.ee=3b5 1.ef=2229 "
        "1.f0=2261 1.f1=b1 1.f2=2265 1.f3=2264 1.f4*2=2320 1.f6=f7 1.f7=2248 1.f8=b0 1.f9=2219 1.fa=b7 "
        "1.fb=221a 1.fc=207f 1.fd=b2 1.fe=25a0 1.ff=a0"
    ),
    "koi8u": ("1.95=2022"),
    "latin1": ("1.81=81 1.8d=8d 1.8f*2=8f 1.9d=9d"),
    "sjis": ("2.815f=5c"),
    "swe7": ("1.40=c9 1.5b=c4 1.5c=d6 1.5d=c5 1.5e=dc 1.60=e9 1.7b=e4 1.7c=f6 1.7d=e5 1.7e=fc 1.7f=-"),
    "tis620": ("1.a0=fffd 1.db=fffd 1.dc=fffd 1.dd=fffd 1.de=fffd 1.fc=fffd 1.fd=fffd 1.fe=fffd 1.ff=fffd"),
    "ujis": (
        "2.a1c0=5c 2.f5a1*94=e000 2.f6a1*94=e05e 2.f7a1*94=e0bc 2.f8a1*94=e11a 2.f9a1*94=e178 2.faa1*94=e1d6 "
        "2.fba1*94=e234 2.fca1*94=e292 2.fda1*94=e2f0 2.fea1*94=e34e 3.f5a1*94=e3ac 3.f6a1*94=e40a "
        "3.f7a1*94=e468 3.f8a1*94=e4c6 3.f9a1*94=e524 3.faa1*94=e582 3.fba1*94=e5e0 3.fca1*94=e63e "
        "3.fda1*94=e69c 3.fea1*94=e6fa"
    ),
}
